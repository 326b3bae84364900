"""A run's time by what it was spent on, for ``torl bench profile``."""

from collections.abc import Mapping, Sequence

from torl.insight.spent import KINDS

PARTS = (*KINDS, "update", "other")


def profile(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds of a step by part: means over the steps of ``rows`` (metrics.jsonl).

    "other" is what the parts leave of ``time/step_s``. Steps without times are left out.
    """
    timed = [row for row in rows if "time/step_s" in row]
    means = {
        part: sum(row.get(f"time/{part}_s", 0.0) for row in timed) / max(1, len(timed))
        for part in (*KINDS, "update", "step")
    }
    step = means.pop("step")
    return means | {"other": max(0.0, step - sum(means.values()))}
