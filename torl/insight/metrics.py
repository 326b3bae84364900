"""What is measured of the trajectories of a step (arXiv 2503.23383, Figure 5 and section 3).

Every function takes trajectories and returns a number, or None where there is nothing to
divide by: an undefined ratio is left out of the metrics, never 0 and never NaN. What each
name means stands in ``METRICS``.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from torl.insight.catalog import METRICS, define
from torl.insight.pieces import pieces
from torl.rewards.calls import CallKind, calls_of
from torl.rollout.protocol import code_blocks
from torl.types import Group, StopReason, ToolResult, Trajectory

SPENT_IN_VAIN = (CallKind.REDUNDANT, CallKind.UNUSED, CallKind.AFTER_ANSWER)

Measure = Callable[[Sequence[Trajectory]], float | None]


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """All metrics of the trajectories of one step, by ``section/name``."""
    trajectories = [t for group in groups for t in group.trajectories]
    values: dict[str, float | None] = {name: measure(trajectories) for name, measure in _MEASURES.items()}
    values |= _reward_parts(trajectories)
    values |= _stop_reasons(trajectories)
    values |= _of_groups(groups)
    return {name: value for name, value in values.items() if value is not None}


def accuracy(trajectories: Sequence[Trajectory]) -> float | None:
    """Correct over judged."""
    judged = [t.correct for t in trajectories if t.correct is not None]
    return ratio(sum(judged), len(judged))


def code_ratio(trajectories: Sequence[Trajectory]) -> float | None:
    """Responses that contain a code block over responses."""
    return ratio(sum(generated_blocks(t) > 0 for t in trajectories), len(trajectories))


def pass_ratio(trajectories: Sequence[Trajectory]) -> float | None:
    """Executed calls without error over executed calls."""
    calls = executed_calls(trajectories)
    return ratio(sum(call.ok for call in calls), len(calls))


def executed_code_ratio(trajectories: Sequence[Trajectory]) -> float | None:
    """Executed calls over generated code blocks: code past the budget, or never asked to run, counts
    against."""
    return ratio(len(executed_calls(trajectories)), sum(map(generated_blocks, trajectories)))


def before_answer_ratio(trajectories: Sequence[Trajectory]) -> float | None:
    """Code blocks before the final box over code blocks, of responses that have a final box."""
    before = after = 0
    for trajectory in trajectories:
        kinds = [piece.kind for piece in pieces(trajectory)]
        if "answer" in kinds:
            answer = kinds.index("answer")
            before += kinds[:answer].count("code")
            after += kinds[answer:].count("code")
    return ratio(before, before + after)


def malformed_ratio(trajectories: Sequence[Trajectory]) -> float | None:
    """Malformed requests over all requests for a call."""
    calls = [call for t in trajectories for call in t.calls]
    return ratio(sum(call.status == "malformed" for call in calls), len(calls))


def generated_blocks(trajectory: Trajectory) -> int:
    """How many code blocks the policy wrote."""
    return sum(len(code_blocks(turn.text)) for turn in trajectory.turns)


def executed_calls(trajectories: Iterable[Trajectory]) -> list[ToolResult]:
    """The calls that really ran."""
    return [call for t in trajectories for call in t.calls if call.executed]


def calls_that_are(kind: CallKind, trajectories: Sequence[Trajectory]) -> float | None:
    """Executed calls of a kind (torl/rewards/calls.py) per trajectory."""
    return mean(sum(call.kind is kind for call in calls_of(t)) for t in trajectories)


def ratio(part: float, whole: float) -> float | None:
    """part / whole, or None when there is no whole."""
    return part / whole if whole else None


def mean(values: Iterable[float]) -> float | None:
    """The arithmetic mean, or None of nothing."""
    listed = list(values)
    return ratio(sum(listed), len(listed))


def _p99(values: list[float]) -> float | None:
    return float(np.percentile(values, 99)) if values else None


def _where(correct: bool, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [t for t in trajectories if t.correct is correct]


_MEASURES: dict[str, Measure] = {
    "reward/mean": lambda ts: mean(t.reward for t in ts if t.reward is not None),
    "rollout/accuracy": accuracy,
    "rollout/code_ratio": code_ratio,
    "rollout/pass_ratio": pass_ratio,
    "rollout/pass_ratio_correct": lambda ts: pass_ratio(_where(True, ts)),
    "rollout/pass_ratio_incorrect": lambda ts: pass_ratio(_where(False, ts)),
    "rollout/executed_code_ratio": executed_code_ratio,
    "rollout/before_answer_ratio": before_answer_ratio,
    "rollout/calls": lambda ts: ratio(len(executed_calls(ts)), len(ts)),
    **{f"rollout/{kind}_calls": partial(calls_that_are, kind) for kind in SPENT_IN_VAIN},
    "rollout/completion_tokens": lambda ts: mean(sum(t.sampled) for t in ts),
    "rollout/observation_tokens": lambda ts: mean(len(t.ids) - sum(t.sampled) for t in ts),
    "rollout/truncated_ratio": lambda ts: mean(t.truncated for t in ts),
    "rollout/invented_outputs": lambda ts: mean(t.invented_outputs for t in ts),
    "tool/run_s": lambda ts: mean(call.run_s for call in executed_calls(ts)),
    "tool/run_s_p99": lambda ts: _p99([call.run_s for call in executed_calls(ts)]),
    "tool/queue_s": lambda ts: mean(call.queue_s for call in executed_calls(ts)),
    "tool/malformed_ratio": malformed_ratio,
}


def _reward_parts(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    names = sorted({name for t in trajectories for name in t.reward_parts})
    return {
        f"reward/{name}": mean(t.reward_parts[name] for t in trajectories if name in t.reward_parts)
        for name in names
    }


def _stop_reasons(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    return {
        f"rollout/stop_{reason}_ratio": mean(t.stop_reason is reason for t in trajectories)
        for reason in StopReason
    }


def _of_groups(groups: Sequence[Group]) -> dict[str, float | None]:
    """Losses to the world, and groups whose rewards are all equal (every advantage is 0)."""
    dropped = sum(group.dropped for group in groups)
    kept = sum(len(group.trajectories) for group in groups)
    rewards = [{t.reward for t in g.trajectories if t.reward is not None} for g in groups]
    judged = [r for r in rewards if r]
    return {
        "rollout/dropped": float(dropped),
        "rollout/dropped_ratio": ratio(dropped, dropped + kept),
        "rollout/no_signal_ratio": ratio(sum(len(r) == 1 for r in judged), len(judged)),
    }


__all__ = ["METRICS", "define", "rollout_metrics"]
