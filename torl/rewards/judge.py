"""Judges a trajectory with the reward functions that the recipe lists."""

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any

from torl.errors import UserError, VerifierFault
from torl.rewards.answers import final_answer
from torl.rewards.builtin import Correctness
from torl.rewards.resolve import resolve_rewards
from torl.rewards.verifier import Verifier
from torl.threads import in_thread
from torl.types import Trajectory

if TYPE_CHECKING:
    from torl.config import Correctness as CorrectnessConfig

RewardFunction = Callable[..., Any]
"""``(trajectory, task) -> float | dict[str, float]``, or a coroutine function of the same."""


class Judge:
    """Computes every reward part, fills ``trajectory.reward_parts`` and ``trajectory.reward``.

    ``rewards`` is the recipe's mapping of names and import paths to weights. ``extra`` are
    functions given from Python: a name in ``rewards`` that is an extra's ``__name__`` gives
    its weight, and one that is not named there has weight 1.

    Raises UserError, before anything runs, when a name is unknown or a signature is wrong.
    """

    def __init__(
        self,
        rewards: dict[str, float],
        correctness: "CorrectnessConfig",
        extra: Sequence[RewardFunction] = (),
        timeout_s: float = 60.0,
    ) -> None:
        self._verifier = Verifier(correctness.workers, correctness.timeout_s)
        self._correctness = Correctness(correctness, self._verifier)
        self._parts = resolve_rewards(rewards, extra, {"correctness": self._correctness})
        self._timeout_s = timeout_s  # of one reward function, so that a hung one cannot stop the run

    @property
    def names(self) -> list[str]:
        """The reward functions by the names under which their parts are recorded."""
        return [part.name for part in self._parts]

    async def judge(self, trajectory: Trajectory) -> None:
        """Fills ``reward_parts`` (unweighted), ``reward`` (the weighted sum), ``answer``, ``correct``.

        Raises VerifierFault, naming function and trajectory, when a reward function raises,
        hangs or returns something that is not a finite number: the trajectory is then to be
        dropped and counted, and its reward stays None. Raises UserError when correctness is
        listed and the task has no answer.
        """
        trajectory.reward, trajectory.reward_parts = None, {}
        if "correctness" in self.names and not trajectory.task.answer.strip():
            raise UserError(
                f"task {trajectory.task.id} has no answer, and the recipe rewards correctness; "
                "give it one or take correctness out of rewards"
            )
        parts: dict[str, float] = {}
        total = 0.0
        for part in self._parts:
            values = await self._evaluate(part.name, part.function, trajectory)
            parts |= values
            total += part.weight * sum(values.values())
        await self._measure_correct(trajectory)
        trajectory.reward_parts, trajectory.reward = parts, total

    async def close(self) -> None:
        """Ends the verifier's workers."""
        await self._verifier.close()

    async def _measure_correct(self, trajectory: Trajectory) -> None:
        """``correct`` is a metric even where it is no reward; undecided, it stays None."""
        if "correctness" in self.names:
            return
        trajectory.answer, trajectory.correct = final_answer(trajectory), None
        if trajectory.task.answer.strip():
            with suppress(VerifierFault):
                await self._correctness(trajectory, trajectory.task)

    async def _evaluate(
        self, name: str, function: RewardFunction, trajectory: Trajectory
    ) -> dict[str, float]:
        where = f"reward {name} on trajectory {trajectory.id}"
        try:
            value = await self._call(function, trajectory)
        except TimeoutError as error:
            raise VerifierFault(f"{where}: no result within {self._timeout_s:g} s") from error
        except Exception as error:  # whatever a user's function raises, it has not judged
            raise VerifierFault(f"{where}: {type(error).__name__}: {error}") from error
        values = {f"{name}/{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
        for key, number in values.items():
            if not isinstance(number, Real) or not math.isfinite(number):
                raise VerifierFault(f"{where}: {key} is {number!r}, not a finite number")
        return {key: float(number) for key, number in values.items()}

    async def _call(self, function: RewardFunction, trajectory: Trajectory) -> Any:
        if function is self._correctness:  # has its own limit, and may wait for a free worker
            return await self._correctness(trajectory, trajectory.task)
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
