"""Held-out accuracy: the same rollout as in training, greedy by default, and no update."""

from torl.insight.progress import Progress
from torl.insight.stats import Summary, summary_of
from torl.parts import Parts
from torl.rollout.collect import collect
from torl.run import Run
from torl.types import Group

EVALUATION = 1  # first number of an evaluation's random streams; training's is 0


async def evaluate(
    parts: Parts, progress: Progress, *, label: str = "evaluate", seed: int = 0
) -> dict[str, list[Group]]:
    """One trajectory for each held-out task, by task set."""
    found = {}
    for name, tasks in parts.tasks.test.items():
        with progress.part(f"{label} {name}", len(tasks)) as advance:
            found[name] = await collect(
                parts.evaluated,
                tasks,
                group_size=1,
                judge=parts.judge.judge,
                seed=(EVALUATION, seed),
                on_done=lambda _: advance(),
                retries=parts.agent.limits.retries,
            )
    return found


def summaries(found: dict[str, list[Group]]) -> dict[str, Summary]:
    """Accuracy with its interval, code ratio and pass ratio of each set."""
    return {
        name: summary_of([t for group in groups for t in group.trajectories])
        for name, groups in found.items()
    }


async def measure(parts: Parts, run: Run, progress: Progress, when: str, step: int) -> dict[str, Summary]:
    """Evaluates and keeps the trajectories in the run's folder."""
    found = await evaluate(parts, progress, label=f"held-out {when}", seed=run.recipe.seed)
    for name, groups in found.items():
        run.write_eval(when, name, groups, step)
    return summaries(found)
