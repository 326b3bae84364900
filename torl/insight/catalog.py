"""Every metric that torl logs: its unit, its definition, where it comes from.

``docs/metrics.md`` is made from this table, and a test fails when a metric is logged that is
not in it. A module adds its own with ``define``. A part in angle brackets stands for any
name: ``reward/<part>``.
"""

import re
from typing import NamedTuple, get_args

from torl.sandbox.types import Status


class Metric(NamedTuple):
    """What a number means. ``source`` is the part of torl that measures it, or the paper's figure."""

    unit: str
    definition: str
    source: str


METRICS: dict[str, Metric] = {}


def define(name: str, unit: str, definition: str, source: str) -> None:
    """Documents a metric. Raises ValueError for a name that is not section/name or is taken."""
    if not re.fullmatch(r"[\w<>]+(/[\w<>]+)+", name):
        raise ValueError(f"a metric's name is section/name, not {name!r}")
    if name in METRICS and METRICS[name] != (unit, definition, source):
        raise ValueError(f"metric {name} is defined twice")
    METRICS[name] = Metric(unit, definition, source)


def lookup(name: str) -> Metric | None:
    """The definition of a logged name; ``reward/<part>`` answers for reward/correctness."""
    if name in METRICS:
        return METRICS[name]
    matches = (m for pattern, m in METRICS.items() if "<" in pattern and _fits(pattern, name))
    return next(matches, None)


def markdown() -> str:
    """The table of all metrics, for the documentation."""
    rows = [f"| `{name}` | {m.unit} | {m.definition} | {m.source} |" for name, m in METRICS.items()]
    return "\n".join(["| metric | unit | definition | source |", "|---|---|---|---|", *rows, ""])


def _fits(pattern: str, name: str) -> bool:
    parts = re.split(r"<\w+>", pattern)
    return re.fullmatch("[^/]+".join(map(re.escape, parts)), name) is not None


_PAPER = "arXiv 2503.23383, Figure 5"
_ROLLOUT = "trajectories of the step"

for _entry in [
    ("reward/mean", "reward", "mean reward of the judged trajectories", _ROLLOUT),
    ("reward/<part>", "reward", "mean of one part of the reward, over trajectories that have it", _ROLLOUT),
    (
        "reward/<function>/<part>",
        "reward",
        "the same for a function that returns several parts, e.g. reward/soundness/answer_once",
        _ROLLOUT,
    ),
    ("rollout/accuracy", "ratio", "correct / judged trajectories (sampled, so below greedy)", _ROLLOUT),
    ("rollout/code_ratio", "ratio", "responses with a code block / responses", _PAPER),
    ("rollout/pass_ratio", "ratio", "executed calls without error / executed calls", _PAPER),
    ("rollout/pass_ratio_correct", "ratio", "pass ratio within correct responses", _PAPER),
    ("rollout/pass_ratio_incorrect", "ratio", "pass ratio within incorrect responses", _PAPER),
    ("rollout/executed_code_ratio", "ratio", "executed calls / generated code blocks", _PAPER),
    (
        "rollout/before_answer_ratio",
        "ratio",
        "code blocks before the final box / code blocks, in responses with a final box",
        _PAPER,
    ),
    ("rollout/calls", "calls", "executed calls per trajectory", _ROLLOUT),
    (
        "rollout/redundant_calls",
        "calls",
        "executed calls per trajectory that repeat the code of an earlier one",
        _ROLLOUT,
    ),
    (
        "rollout/unused_calls",
        "calls",
        "executed calls per trajectory that passed, and of whose result nothing is taken up later",
        _ROLLOUT,
    ),
    (
        "rollout/after_answer_calls",
        "calls",
        "executed calls per trajectory behind the final answer",
        _ROLLOUT,
    ),
    ("rollout/completion_tokens", "tokens", "mean sampled tokens of a trajectory", _ROLLOUT),
    ("rollout/observation_tokens", "tokens", "mean appended tokens of a trajectory", _ROLLOUT),
    (
        "rollout/truncated_ratio",
        "ratio",
        "trajectories cut off by the token budget / trajectories",
        _ROLLOUT,
    ),
    (
        "rollout/stop_<reason>_ratio",
        "ratio",
        "trajectories that ended for this reason (end, stop, length, tool) / trajectories",
        _ROLLOUT,
    ),
    (
        "rollout/invented_outputs",
        "blocks",
        "output blocks that the policy wrote itself, per trajectory (they do not train)",
        _ROLLOUT,
    ),
    ("rollout/dropped", "trajectories", "lost to the world's faults, after retries", _ROLLOUT),
    ("rollout/dropped_ratio", "ratio", "dropped / (dropped + kept) trajectories", _ROLLOUT),
    ("rollout/no_signal_ratio", "ratio", "groups whose rewards are all equal / judged groups", _ROLLOUT),
    ("tool/run_s", "s", "mean wall time of an executed call, waiting not counted", "sandbox"),
    ("tool/run_s_p99", "s", "99th percentile of the wall time of an executed call", "sandbox"),
    ("tool/queue_s", "s", "mean time that an executed call waited for a worker", "sandbox"),
    ("sandbox/calls", "calls", "calls since the step before, evaluations included", "sandbox"),
    ("sandbox/<status>", "calls", "those of them that ended so: " + ", ".join(get_args(Status)), "sandbox"),
    (
        "sandbox/retries",
        "calls",
        "times that a call was run again, because the sandbox had failed it",
        "sandbox",
    ),
    ("sandbox/restarts", "restarts", "of the broker, or of a zygote that had died", "sandbox"),
    ("sandbox/pauses", "pauses", "times that no worker could be had, and the calls waited", "sandbox"),
    ("sandbox/run_p50_s", "s", "median of a call's wall time, waiting not counted", "sandbox"),
    ("sandbox/run_p99_s", "s", "its 99th percentile", "sandbox"),
    ("sandbox/queue_p50_s", "s", "median of a call's wait for a worker and its layers", "sandbox"),
    ("sandbox/queue_p99_s", "s", "its 99th percentile", "sandbox"),
    ("tool/malformed_ratio", "ratio", "malformed requests / all requests for a call", _ROLLOUT),
    (
        "heldout/<set>/accuracy",
        "ratio",
        "correct / judged held-out tasks, after this step's update",
        "eval",
    ),
    ("heldout/<set>/ci_low", "ratio", "lower end of its Wilson 95% interval", "eval"),
    ("heldout/<set>/ci_high", "ratio", "upper end of its Wilson 95% interval", "eval"),
    ("heldout/<set>/code_ratio", "ratio", "held-out responses with a code block / responses", "eval"),
    ("heldout/<set>/pass_ratio", "ratio", "executed held-out calls without error / executed", "eval"),
    ("filters/draws", "batches", "batches of tasks that were played in the step", "filters.draws"),
    (
        "filters/groups_left_out",
        "groups",
        "groups that were played and do not train: without signal, or more than were wanted",
        "filters.draws",
    ),
    (
        "filters/<name>_ratio",
        "ratio",
        "trajectories that the mask keeps from training / trajectories of the step",
        "filters.mask",
    ),
    ("loss/policy", "nats", "policy loss per trained token, mean over the step's updates", "learner"),
    ("loss/value", "reward^2", "the critic's loss per trained token, mean over its updates", "critic"),
    ("loss/kl", "nats", "divergence from the reference by algorithm.kl, per trained token", "learner"),
    ("loss/entropy", "nats", "mean entropy of the next-token distribution at trained tokens", "learner"),
    ("learner/grad_norm", "norm", "gradient's L2 norm before clipping, mean over updates", "learner"),
    ("learner/lr", "", "learning rate of the step's last update", "learner"),
    (
        "learner/ratio_mean",
        "ratio",
        "mean probability ratio, current / old, over trained tokens",
        "learner",
    ),
    ("learner/clip_ratio", "ratio", "trained tokens whose ratio was clipped / trained tokens", "learner"),
    (
        "learner/off_policy_ratio",
        "ratio",
        "mean of the learner's / the sampler's probability, by token or by trajectory",
        "learner",
    ),
    ("learner/off_policy_ratio_max", "ratio", "the largest of them", "learner"),
    (
        "learner/off_policy_beyond",
        "ratio",
        "trained tokens beyond off_policy_bound or below its inverse / trained tokens",
        "learner",
    ),
    ("critic/value", "reward", "mean value over trained tokens, before the step's updates", "critic"),
    (
        "critic/explained_variance",
        "ratio",
        "1 - var(return - value) / var(return), before the step's updates",
        "critic",
    ),
    ("critic/grad_norm", "norm", "gradient's L2 norm before clipping, mean over updates", "critic"),
    (
        "critic/warmup_updates",
        "updates",
        "the policy's updates left out while the critic warms up",
        "critic",
    ),
    (
        "learner/trained_tokens",
        "tokens",
        "tokens with loss mask 1; each update divides its loss by its own",
        "learner",
    ),
    ("learner/updates", "updates", "optimizer updates that were made", "learner"),
    ("learner/skipped_updates", "updates", "updates skipped: non-finite loss or gradient", "learner"),
    (
        "learner/no_signal_updates",
        "updates",
        "updates left out: no advantage in the whole mini-batch",
        "learner",
    ),
    (
        "sampler/logprob_gap",
        "nats",
        "mean |learner's - sampler's log-probability| per trained token",
        "learner",
    ),
    ("sampler/tokens_per_s", "tokens/s", "sampled tokens / wall time of the rollout", "sampler"),
    ("time/rollout_s", "s", "wall time of sampling, tool calls and judging", "loop"),
    (
        "time/decode_s",
        "s",
        "of the rollout: passes of the sampler, the share of newly drawn tokens",
        "loop",
    ),
    ("time/prefill_s", "s", "of the rollout: the share of prompts and observations in its passes", "loop"),
    ("time/tools_s", "s", "of the rollout: no pass, while a tool ran", "loop"),
    ("time/reward_s", "s", "of the rollout: neither pass nor tool, while a judge worked", "loop"),
    ("time/update_s", "s", "wall time of the learner's updates", "loop"),
    ("time/step_s", "s", "wall time of the whole step", "loop"),
]:
    define(*_entry)
