"""Training: the loop, visible on one screen."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torl.algorithms.advantages import advantage_named
from torl.algorithms.losses import loss_named
from torl.config import Recipe
from torl.credit import credit_for
from torl.errors import RunHalted, UserError, WorldFault
from torl.evaluate import measure
from torl.insight.metrics import rollout_metrics
from torl.insight.progress import Progress
from torl.insight.report import write_report
from torl.insight.spent import Spent
from torl.insight.stats import heldout_metrics
from torl.interrupt import Stop
from torl.learner.checkpoint import newest_checkpoint, read_state, save_checkpoint
from torl.learner.local import LocalLearner
from torl.parts import Parts, ToolLike, build, reference
from torl.resume import reopen
from torl.rewards import RewardFunction
from torl.rollout.collect import collect
from torl.run import Run, default_run_dir
from torl.selection import Selection
from torl.tasks import TaskSets, TaskStream
from torl.types import Group, Task, Trajectory

TRAINING = 0  # first number of training's random streams; an evaluation's is 1


async def _loop(run: Run, parts: Parts, learner: LocalLearner, state: dict[str, Any], stop: Stop) -> None:
    """Rolls out, judges, updates, until the recipe's steps are done or ``stop`` is asked for."""
    recipe, sampler = run.recipe, parts.agent.sampler
    credit, selection = credit_for(recipe, learner.ref_logprobs), Selection(recipe)
    stream = TaskStream(parts.tasks.train, recipe.prompts_per_step, recipe.seed)
    with Progress(recipe.steps, state["step"]) as progress:
        started = await parts.start()
        run.add_versions(started)
        for warning in recipe.algorithm.warnings():
            progress.note(f"note: {warning}")
        if "sandbox" in started:
            progress.note(f"sandbox: {started['sandbox']}")
        if recipe.eval.before and state["step"] == 0 and "before" not in state and not stop.asked:
            state["before"] = await measure(parts, run, progress, "before", 0)
        while state["step"] < recipe.steps and not stop.asked:
            step, clock = state["step"], _Clock(parts.agent.spent)
            size = recipe.prompts_per_step * selection.played
            with progress.part(f"step {step}", size, quiet=True) as advance:
                play = partial(_play, parts, recipe, stream, each=selection.played, advance=advance)
                chosen = await selection.gather(play, state["drawn"])
            clock.lap("time/rollout_s")
            credit(chosen.kept)
            batch, filtered = selection.batch(_kept(chosen.kept, step))
            metrics = rollout_metrics(chosen.played) | filtered | chosen.metrics()
            metrics |= parts.tool_metrics() | learner.update(batch)
            clock.lap("time/update_s")
            sampler.set_weights(learner.updates)
            state["step"], state["drawn"] = step + 1, state["drawn"] + chosen.draws
            if _due(recipe.eval.every, state["step"]) and state["step"] < recipe.steps:
                found = await measure(parts, run, progress, f"step-{state['step']:05d}", state["step"])
                for name, summary in found.items():
                    metrics |= heldout_metrics(name, summary)
            metrics |= clock.times() | {"sampler/tokens_per_s": _sampled(chosen.played) / clock.rollout_s}
            run.write_step(step, chosen.kept, metrics)
            state["seconds"] += metrics["time/step_s"]
            progress.step(step, metrics)
            if _due(recipe.checkpoint.every, state["step"]):
                _save(run, parts, learner, state)
        if not stop.asked:
            state["after"] = await measure(parts, run, progress, "after", state["step"])


async def _play(
    parts: Parts, recipe: Recipe, stream: TaskStream, number: int, *, each: int, advance: Callable[[], None]
) -> list[Group]:
    """The groups of the batch of tasks with this number, ``each`` trajectories a task, judged."""
    return await collect(
        parts.agent,
        stream.batch(number),
        each,
        parts.judge.judge,
        seed=(TRAINING, recipe.seed, number),
        on_done=lambda _: advance(),
        retries=recipe.rollout.retries,
    )


def _due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def _kept(groups: Sequence[Group], step: int) -> list[Trajectory]:
    """The trajectories to train on. Raises WorldFault when the world's faults took all of them:
    then something is broken, and more steps would only pretend to train."""
    kept = [t for group in groups for t in group.trajectories]
    if not kept:
        raise WorldFault(
            f"step {step}: every trajectory was lost to a fault of a tool, the sandbox, the sampler or a "
            "reward; the warnings above say which. The steps before are saved: continue with --resume"
        )
    return kept


def train(
    recipe: Recipe,
    run_dir: str | Path | None = None,
    *,
    tasks: Sequence[Task] | TaskSets | None = None,
    tools: Sequence[ToolLike] | None = None,
    rewards: Sequence[RewardFunction] = (),
    resume: bool = False,
) -> Run:
    """Trains a policy as ``recipe`` says and returns its run, finished or interrupted.

    ``tasks``, ``tools`` (functions of one string) and ``rewards`` (functions of a trajectory
    and its task) may be given from Python. With ``resume`` an interrupted run goes on from its
    newest checkpoint, to the same result as if it had never stopped.
    Raises UserError when something given is wrong, before anything is loaded where possible.
    """
    if recipe.rollout.temperature == 0:
        raise UserError(
            "rollout.temperature=0 makes all trajectories of a task the same, so there is nothing to learn "
            "from; training samples, usually at 1"
        )
    advantage_named(recipe.algorithm.advantage)
    loss_named(recipe.algorithm.loss)
    path = Path(run_dir) if run_dir is not None else default_run_dir(recipe.name)
    run = reopen(path, recipe) if resume else Run.create(path, recipe)
    with run, Stop() as stop:
        checkpoint = newest_checkpoint(run.checkpoints)
        fresh = {"step": 0, "drawn": 0, "seconds": 0.0}
        state: dict[str, Any] = read_state(checkpoint) if checkpoint else fresh
        model = str(checkpoint / "model") if checkpoint else None
        try:
            parts = build(recipe, tasks=tasks, tools=tools, rewards=rewards, model=model)
        except BaseException:
            if not resume:
                run.forget()
            raise
        learner = LocalLearner(
            parts.model,
            recipe.algorithm,
            recipe.learner,
            recipe.rollout,
            reference=reference(recipe, parts.model),
            critic=recipe.critic,
        )
        if checkpoint:
            learner.load(checkpoint, state["updates"])
        run.rewind(state["step"])
        asyncio.run(_run(run, parts, learner, state, stop))
    return run


async def _run(run: Run, parts: Parts, learner: LocalLearner, state: dict[str, Any], stop: Stop) -> None:
    """The loop, and what is kept at its end, however it ends."""
    parts.agent.sampler.set_weights(learner.updates)
    try:
        await _loop(run, parts, learner, state, stop)
        _save(run, parts, learner, state)
        if "after" in state:
            run.write_summary(state.get("before", {}), state["after"], state["step"], state["seconds"])
        write_report(run.path)
    except (WorldFault, RunHalted):
        _save(run, parts, learner, state)
        raise
    finally:
        await parts.close()


def _save(run: Run, parts: Parts, learner: LocalLearner, state: dict[str, Any]) -> None:
    newest = newest_checkpoint(run.checkpoints)
    if newest is not None and read_state(newest)["step"] == state["step"]:
        return
    save_checkpoint(
        run.checkpoints,
        learner,
        parts.tokenizer,
        step=state["step"],
        state={"updates": learner.updates}
        | {k: state[k] for k in ("drawn", "seconds", "before") if k in state},
        keep=run.recipe.checkpoint.keep,
    )


def _sampled(groups: Sequence[Group]) -> int:
    return sum(sum(t.sampled) for group in groups for t in group.trajectories)


class _Callable(ModuleType):
    """``torl.train`` names this module as soon as it is imported, and users mean the function."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _Callable


class _Clock:
    """Seconds of the parts of one step."""

    def __init__(self, spent: Spent) -> None:
        self._spent = spent
        spent.take()  # what an evaluation spent is not the step's
        self._start = self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    @property
    def rollout_s(self) -> float:
        return self.seconds["time/rollout_s"]

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = now - self._last
        self._last = now

    def times(self) -> dict[str, float]:
        parts = {f"time/{kind}_s": seconds for kind, seconds in self._spent.take().items()}
        return self.seconds | parts | {"time/step_s": time.monotonic() - self._start}
