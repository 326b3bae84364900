"""What the stored evaluations of a run show: before against after, and episodes worth reading."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from torl.insight.stats import Summary, summary_of
from torl.insight.store import read_trajectories
from torl.run import Run
from torl.types import Trajectory


class Evaluation(NamedTuple):
    """One held-out set, before and after training; None for what was not (yet) measured."""

    before: Summary | None
    after: Summary | None


class Solved(NamedTuple):
    """One task that was solved only after training."""

    before: Trajectory
    after: Trajectory


def heldout_of(run: Run) -> dict[str, Evaluation]:
    """Held-out results by set: from summary.json, or of a run cut short from its trajectories."""
    summary = run.summary()
    if summary is not None:
        return {name: Evaluation(**result) for name, result in summary["heldout"].items()}
    return {
        name: Evaluation(_summary(run.eval_file("before", name)), _summary(run.eval_file("after", name)))
        for name in _sets(run)
    }


def only_after_training(run: Run) -> Solved | None:
    """The clearest task that was wrong before training and right after it, with its tool.

    An episode whose code ran is preferred, then the shortest one.
    """
    return min(_solved(run), key=lambda pair: _obscurity(pair.after), default=None)


def samples(run: Run) -> list[Trajectory]:
    """One right and one wrong episode, of the evaluation after training or of the last step."""
    files = [run.eval_file("after", name) for name in _sets(run)]
    files = [path for path in files if path.exists()] or sorted(run.trajectories.glob("step-*.jsonl"))[-1:]
    episodes = [t for path in files for t in read_trajectories(path)]
    chosen = (_clearest(t for t in episodes if t.correct is correct) for correct in (True, False))
    return [trajectory for trajectory in chosen if trajectory is not None]


def _solved(run: Run) -> Iterator[Solved]:
    for name in _sets(run):
        before, after = run.eval_file("before", name), run.eval_file("after", name)
        if before.exists() and after.exists():
            earlier = {t.id: t for t in read_trajectories(before)}
            for trajectory in read_trajectories(after):
                was = earlier.get(trajectory.id)
                if was is not None and was.correct is False and trajectory.correct:
                    yield Solved(was, trajectory)


def _clearest(trajectories: Iterable[Trajectory]) -> Trajectory | None:
    return min(trajectories, key=_obscurity, default=None)


def _obscurity(trajectory: Trajectory) -> tuple[bool, int, int]:
    ran = any(call.executed and call.ok for call in trajectory.calls)
    return not ran, trajectory.invented_outputs, len(trajectory.text)


def _sets(run: Run) -> list[str]:
    files = [*run.path.glob("eval/before-*.jsonl"), *run.path.glob("eval/after-*.jsonl")]
    return sorted({path.stem.partition("-")[2] for path in files})


def _summary(path: Path) -> Summary | None:
    return summary_of(list(read_trajectories(path))) if path.exists() else None
