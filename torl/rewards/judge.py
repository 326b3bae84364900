"""Judges a trajectory with the reward functions that the recipe lists."""

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

from torl.errors import UserError, VerifierFault
from torl.rewards.builtin import Correctness, Overlong
from torl.rewards.efficiency import ToolEfficiency
from torl.rewards.llm_judge import LLMJudge
from torl.rewards.resolve import resolve_rewards
from torl.rewards.settings import Correctness as CorrectnessConfig
from torl.rewards.settings import Efficiency, Soundness
from torl.rewards.settings import LLMJudge as LLMJudgeConfig
from torl.rewards.soundness import SoundnessReward
from torl.rewards.verifier import Verifier
from torl.threads import in_thread
from torl.tools.python import Box
from torl.types import Task, Trajectory

RewardFunction = Callable[..., Any]
"""``(trajectory, task) -> float | dict[str, float]``, or a coroutine function of the same."""


class Judge:
    """Computes every reward part, fills ``trajectory.reward_parts`` and ``trajectory.reward``.

    ``rewards`` is the recipe's mapping of names and import paths to weights. ``extra`` are functions given
    from Python: a name in ``rewards`` that is an extra's ``__name__`` gives its weight, and one that is not
    named there has weight 1. ``efficiency``, ``soundness`` and ``llm_judge`` are the recipe's sections,
    ``overlong`` the reward of that name; ``box`` is a sandbox of the judge's own, which correctness by
    tests needs, and which is closed with the judge.

    Raises UserError, before anything runs, when a name is unknown or a signature is wrong.
    """

    def __init__(
        self,
        rewards: dict[str, float],
        correctness: CorrectnessConfig,
        extra: Sequence[RewardFunction] = (),
        timeout_s: float = 60.0,
        *,
        efficiency: Efficiency | None = None,
        soundness: Soundness | None = None,
        llm_judge: LLMJudgeConfig | None = None,
        overlong: Overlong | None = None,
        box: Box | None = None,
    ) -> None:
        self._verifier = Verifier(correctness.workers, correctness.timeout_s)
        self._box = box
        self._correctness = Correctness(correctness, self._verifier, box)
        stateful: dict[str, RewardFunction] = {
            "correctness": self._correctness,
            "tool_efficiency": ToolEfficiency(efficiency or Efficiency()),
            "soundness": SoundnessReward(soundness or Soundness()),
            "overlong": overlong or _unasked,
            "judge": _unasked,
        }
        if "judge" in rewards:
            stateful["judge"] = LLMJudge(llm_judge or LLMJudgeConfig())
        # These have limits of their own, and may wait for a free worker or a busy endpoint.
        self._unhurried = (stateful["correctness"], stateful["judge"])
        self._parts = resolve_rewards(rewards, extra, stateful)
        self._timeout_s = timeout_s  # of one reward function, so that a hung one cannot stop the run

    @property
    def names(self) -> list[str]:
        """The reward functions by the names under which their parts are recorded."""
        return [part.name for part in self._parts]

    async def start(self) -> None:
        """Starts the sandbox, if there is one. Raises UserError when it cannot be had here."""
        if self._box is not None:
            await self._box.start()

    async def judge(self, trajectory: Trajectory) -> None:
        """Fills ``reward_parts`` (unweighted), ``reward`` (the weighted sum), ``answer``, ``correct``.

        Correctness is decided first, so ``correct`` and ``answer`` are there for all other functions.
        Raises VerifierFault, naming function and trajectory, when a reward function raises,
        hangs or returns something that is not a finite number: the trajectory is then to be
        dropped and counted, and its reward stays None. Raises UserError when a function does: what
        it was given is wrong, e.g. correctness is listed and the task has no answer.
        """
        trajectory.reward, trajectory.reward_parts = None, {}
        values: dict[str, dict[str, float]] = {}
        if "correctness" not in self.names:
            await self._measure_correct(trajectory)
        for part in sorted(self._parts, key=lambda part: part.name != "correctness"):
            values[part.name] = await self._evaluate(part.name, part.function, trajectory)
        parts: dict[str, float] = {}
        total = 0.0
        for part in self._parts:
            parts |= values[part.name]
            total += part.weight * sum(values[part.name].values())
        trajectory.reward_parts, trajectory.reward = parts, total

    async def close(self) -> None:
        """Ends the verifier's workers, and the sandbox."""
        await self._verifier.close()
        if self._box is not None:
            await self._box.close()

    async def _measure_correct(self, trajectory: Trajectory) -> None:
        """``correct`` is a metric even where it is no reward; undecided, it stays None."""
        with suppress(VerifierFault, UserError):  # the task may have no answer: nothing asks for one
            await self._correctness(trajectory, trajectory.task)

    async def _evaluate(
        self, name: str, function: RewardFunction, trajectory: Trajectory
    ) -> dict[str, float]:
        where = f"reward {name} on trajectory {trajectory.id}"
        try:
            value = await self._call(function, trajectory)
        except TimeoutError as error:
            raise VerifierFault(f"{where}: no result within {self._timeout_s:g} s") from error
        except UserError:  # the same for all trajectories: to go on would lose each of them
            raise
        except Exception as error:  # whatever a user's function raises, it has not judged
            raise VerifierFault(f"{where}: {type(error).__name__}: {error}") from error
        values = {f"{name}/{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
        for key, number in values.items():
            if not isinstance(number, Real) or not math.isfinite(number):
                raise VerifierFault(f"{where}: {key} is {number!r}, not a finite number")
        return {key: float(number) for key, number in values.items()}

    async def _call(self, function: RewardFunction, trajectory: Trajectory) -> Any:
        if function in self._unhurried:
            return await function(trajectory, trajectory.task)
        async with asyncio.timeout(self._timeout_s):
            if is_async(function):
                return await function(trajectory, trajectory.task)
            value = await in_thread(function, trajectory, trajectory.task)
            return await value if inspect.isawaitable(value) else value


def is_async(function: RewardFunction) -> bool:
    """True for coroutine functions and for objects whose ``__call__`` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


async def _unasked(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
    """In the place of a function that was not given: its name is known, and taken."""
    raise UserError("rewards: this function is not listed, or the judge was made without its section")
