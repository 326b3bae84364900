"""Proportions with honest intervals, and the summary of an evaluation."""

import math
import re
from collections.abc import Sequence
from typing import TypedDict

from torl.insight.metrics import code_ratio, pass_ratio
from torl.types import Trajectory

_Z95 = 1.959963984540054  # the standard normal's 97.5% quantile


class Summary(TypedDict):
    """One evaluation, as it stands in summary.json. None where nothing could be measured."""

    accuracy: float | None
    n: int  # judged trajectories
    ci95: list[float]
    code_ratio: float | None
    pass_ratio: float | None


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a proportion; (0, 1) when nothing was observed.

    Unlike p ± 1.96 s it stays inside [0, 1] and has a width at 0 and at n successes.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    p, z2 = successes / n, _Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return low, high


def summary_of(trajectories: Sequence[Trajectory]) -> Summary:
    """Accuracy over the judged trajectories with its interval, and the tool statistics."""
    judged = [t for t in trajectories if t.correct is not None]
    right = sum(t.correct is True for t in judged)
    return {
        "accuracy": right / len(judged) if judged else None,
        "n": len(judged),
        "ci95": list(wilson(right, len(judged))),
        "code_ratio": code_ratio(trajectories),
        "pass_ratio": pass_ratio(trajectories),
    }


def heldout_metrics(task_set: str, summary: Summary) -> dict[str, float]:
    """An evaluation in the middle of training, as metrics ``heldout/<set>/...`` of its step."""
    low, high = summary["ci95"]
    values = {
        "accuracy": summary["accuracy"],
        "ci_low": low,
        "ci_high": high,
        "code_ratio": summary["code_ratio"],
        "pass_ratio": summary["pass_ratio"],
    }
    name = slug(task_set)
    return {f"heldout/{name}/{key}": value for key, value in values.items() if value is not None}


def slug(name: str) -> str:
    """A set's name as part of a file's or a metric's name: ``../data/mawps.jsonl`` gives mawps."""
    stem = re.sub(r"\.(jsonl?|parquet)$", "", name.rstrip("/").rsplit("/", 1)[-1])
    return re.sub(r"\W+", "_", stem).strip("_") or "tasks"
