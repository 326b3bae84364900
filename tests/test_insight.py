"""Metrics, intervals, who wrote what: cases computed by hand."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torl.insight import catalog
from torl.insight.metrics import METRICS, define, rollout_metrics
from torl.insight.pieces import final_box, pieces
from torl.insight.stats import heldout_metrics, slug, summary_of, wilson
from torl.rewards.answers import last_box
from torl.types import Completion, Group, StopReason, Task, ToolCall, ToolResult, Trajectory

TASK = Task("add/7", "What is 12 * 31?", "372")
OK = ToolResult("372", run_s=0.1, queue_s=0.0)
ERROR = ToolResult("ZeroDivisionError", status="error", run_s=0.3, queue_s=0.2)
MALFORMED = ToolResult("Error: no code block", status="malformed", executed=False)
NONE_LEFT = ToolResult("Error: no tool calls left", status="no_calls_left", executed=False)
CODE = "Let me compute.\n```python\nprint(12 * 31)\n```\n"
CALL = CODE + "```output"


def episode(*turns: tuple[str, ToolResult | None], **fields: Any) -> Trajectory:
    """A trajectory of 5 sampled ids a turn, and 3 appended ids for each observation."""
    trajectory = Trajectory(TASK, sample=0, prompt_ids=[1])
    for text, result in turns:
        stop = StopReason.END if result is None else StopReason.STOP
        turn = trajectory.append_completion(Completion([7] * 5, [-0.5] * 5, stop), text)
        if result is not None:
            turn.result = result
            turn.call = ToolCall("python", "print(12 * 31)\n")
            trajectory.append_observation([8] * 3, f"\n{result.text}\n```\n")
    trajectory.stop_reason = StopReason.END
    for name, value in fields.items():
        setattr(trajectory, name, value)
    return trajectory


def metrics_of(*trajectories: Trajectory, dropped: int = 0) -> dict[str, float]:
    return rollout_metrics([Group(TASK, list(trajectories), dropped)])


RIGHT = episode((CALL, OK), ("So \\boxed{372}.", None), correct=True, reward=1.0)
WRONG = episode((CALL, ERROR), ("So \\boxed{0}.", None), correct=False, reward=-1.0)
PROSE = episode(("It is \\boxed{372}.", None), correct=True, reward=1.0)


def test_accuracy_is_over_judged_trajectories() -> None:
    assert metrics_of(RIGHT, WRONG, PROSE)["rollout/accuracy"] == pytest.approx(2 / 3)
    assert metrics_of(RIGHT, episode(correct=None))["rollout/accuracy"] == 1.0


def test_reward_and_its_parts() -> None:
    first = episode(reward=0.5, reward_parts={"correctness": 1.0, "executability": -0.5})
    second = episode(reward=-1.0, reward_parts={"correctness": -1.0})
    metrics = metrics_of(first, second)
    assert metrics["reward/mean"] == -0.25
    assert metrics["reward/correctness"] == 0.0
    assert metrics["reward/executability"] == -0.5  # only one of them has it


def test_code_ratio_counts_responses_not_blocks() -> None:
    twice = episode((CODE + CODE, None))
    assert metrics_of(twice, PROSE)["rollout/code_ratio"] == 0.5
    assert metrics_of(episode(("```output\n372\n```", None)))["rollout/code_ratio"] == 0.0


def test_pass_ratio_counts_executed_calls() -> None:
    both = episode((CALL, OK), (CALL, ERROR), (CALL, NONE_LEFT), ("```output", MALFORMED))
    metrics = metrics_of(both, RIGHT)
    assert metrics["rollout/pass_ratio"] == pytest.approx(2 / 3)
    assert metrics["rollout/calls"] == 1.5
    assert metrics["tool/malformed_ratio"] == pytest.approx(1 / 5)


def test_pass_ratio_by_outcome() -> None:
    mixed = episode((CALL, OK), (CALL, ERROR), correct=False)
    metrics = metrics_of(RIGHT, WRONG, mixed)
    assert metrics["rollout/pass_ratio_correct"] == 1.0
    assert metrics["rollout/pass_ratio_incorrect"] == pytest.approx(1 / 3)
    assert "rollout/pass_ratio_incorrect" not in metrics_of(RIGHT)


def test_executed_code_ratio_counts_code_that_never_ran() -> None:
    never_asked = episode((CALL, OK), (CODE + "\\boxed{372}", None))
    past_budget = episode((CODE + CALL, OK), (CALL, NONE_LEFT))
    assert metrics_of(never_asked)["rollout/executed_code_ratio"] == 0.5
    assert metrics_of(never_asked, past_budget)["rollout/executed_code_ratio"] == pytest.approx(2 / 5)


def test_before_answer_ratio() -> None:
    assert metrics_of(RIGHT)["rollout/before_answer_ratio"] == 1.0
    checked = episode(("\\boxed{372}\n" + CALL, OK), ("Yes.", None))
    assert metrics_of(checked)["rollout/before_answer_ratio"] == 0.0
    both = episode((CALL, OK), ("\\boxed{372}\n" + CODE, None))
    assert metrics_of(both)["rollout/before_answer_ratio"] == 0.5
    again = episode(("\\boxed{1}\n" + CALL, OK), ("No: \\boxed{372}", None))  # the final box counts
    assert metrics_of(again)["rollout/before_answer_ratio"] == 1.0


def test_before_answer_ratio_ignores_boxes_in_code_and_observations() -> None:
    box = ToolResult("\\boxed{372}")
    printed = episode(("```python\nprint('\\boxed{372}')\n```\n```output", box), (CODE, None))
    assert "rollout/before_answer_ratio" not in metrics_of(printed)


def test_tokens_stop_reasons_and_inventions() -> None:
    cut = episode((CALL, None), stop_reason=StopReason.LENGTH, invented_outputs=3)
    metrics = metrics_of(RIGHT, cut)  # 10 sampled and 3 appended; 5 sampled
    assert metrics["rollout/completion_tokens"] == 7.5
    assert metrics["rollout/observation_tokens"] == 1.5
    assert metrics["rollout/truncated_ratio"] == 0.5
    assert metrics["rollout/invented_outputs"] == 1.5
    reasons = [metrics[f"rollout/stop_{reason}_ratio"] for reason in ("end", "stop", "length", "tool")]
    assert reasons == [0.5, 0.0, 0.5, 0.0]


def test_dropped_and_groups_without_signal() -> None:
    groups = [
        Group(TASK, [RIGHT, PROSE]),  # both 1.0: no signal
        Group(TASK, [RIGHT, WRONG]),
        Group(TASK, [], dropped=2),  # the world's fault, not a group without signal
    ]
    metrics = rollout_metrics(groups)
    assert metrics["rollout/dropped"] == 2.0
    assert metrics["rollout/dropped_ratio"] == pytest.approx(1 / 3)
    assert metrics["rollout/no_signal_ratio"] == 0.5


def test_tool_times_are_of_executed_calls() -> None:
    metrics = metrics_of(RIGHT, WRONG, episode((CALL, NONE_LEFT)))
    assert metrics["tool/run_s"] == pytest.approx(0.2)
    assert metrics["tool/run_s_p99"] == pytest.approx(0.1 + 0.99 * 0.2)
    assert metrics["tool/queue_s"] == pytest.approx(0.1)


def test_what_is_undefined_is_left_out() -> None:
    assert rollout_metrics([]) == {"rollout/dropped": 0.0}
    metrics = metrics_of(episode(("no code, no answer, not judged", None)))
    undefined = ["reward/mean", "rollout/accuracy", "rollout/pass_ratio", "rollout/executed_code_ratio"]
    undefined += ["rollout/before_answer_ratio", "tool/run_s", "tool/run_s_p99", "tool/malformed_ratio"]
    assert not set(undefined) & set(metrics)
    assert all(math.isfinite(value) for value in metrics.values())


def test_no_undocumented_metric_is_emitted() -> None:
    judged = episode((CALL, OK), reward=1.0, reward_parts={"correctness": 1.0}, correct=True)
    emitted = [*metrics_of(judged, RIGHT, WRONG), *heldout_metrics("a/mawps.jsonl", summary_of([RIGHT]))]
    assert [name for name in emitted if catalog.lookup(name) is None] == []
    assert catalog.lookup("reward/correctness") == METRICS["reward/<part>"]
    assert catalog.lookup("reward/soundness/answer_once") == METRICS["reward/<function>/<part>"]
    assert catalog.lookup("reward/a/b/c") is None
    assert catalog.lookup("nothing/like_it") is None


def test_metrics_are_documented_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "METRICS", dict(METRICS))
    define("loss/mine", "", "squared error of the value head", "learner")
    define("loss/mine", "", "squared error of the value head", "learner")  # imported twice
    with pytest.raises(ValueError, match="defined twice"):
        define("loss/mine", "", "something else", "learner")
    with pytest.raises(ValueError, match="section/name"):
        define("loss", "", "", "")
    assert "| `loss/mine` |  | squared error" in catalog.markdown()


# The pieces of an episode


def test_pieces_say_who_wrote_what() -> None:
    invented = "```output\n99\n```\n"
    trajectory = episode((CALL, OK), ("Hm.\n" + invented + "So \\boxed{\\frac{1}{2}}!", None))
    assert [(piece.kind, piece.text) for piece in pieces(trajectory)] == [
        ("prose", "Let me compute.\n"),
        ("code", "```python\nprint(12 * 31)\n```"),
        ("prose", "\n"),
        ("marker", "```output"),
        ("observation", "\n372\n```\n"),
        ("prose", "Hm.\n"),
        ("marker", "```output\n"),
        ("invented", "99\n```"),
        ("prose", "\nSo "),
        ("answer", "\\boxed{\\frac{1}{2}}"),
        ("prose", "!"),
    ]


@given(st.lists(st.text(alphabet="a`{}\\ \noutp", max_size=40), max_size=3), st.booleans())
def test_pieces_lose_nothing(texts: list[str], answered: bool) -> None:
    boxed = [text + "\\boxed{1}\n```output\n" for text in texts]
    trajectory = episode(*[(text, OK if answered else None) for text in boxed])
    assert "".join(piece.text for piece in pieces(trajectory)) == trajectory.text


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("no box", None),
        ("a \\boxed{1} b \\boxed{2} c", "\\boxed{2}"),
        ("\\boxed{\\frac{1}{2}}.", "\\boxed{\\frac{1}{2}}"),
        ("\\boxed{\\{1\\}}.", "\\boxed{\\{1\\}}"),
        ("\\boxed {1}", "\\boxed {1}"),
        ("\\boxed{1} \\boxed{12", "\\boxed{1}"),  # cut off: not an answer
        ("\\boxed{1} \\boxed{\\boxed{1}", "\\boxed{1}"),
        ("\\boxed{\\boxed{1}}", "\\boxed{\\boxed{1}}"),
        ("\\fbox{(1)}.", "\\fbox{(1)}"),
        ("\\boxed{}", "\\boxed{}"),
    ],
)
def test_final_box(text: str, box: str | None) -> None:
    span = final_box(text)
    assert (text[slice(*span)] if span else None) == box


@given(
    st.lists(st.sampled_from(["\\boxed{", "\\fbox {", "{", "}", "\\", "1", " "]), max_size=12).map("".join)
)
def test_final_box_is_the_one_that_the_reward_reads(text: str) -> None:
    span = final_box(text)
    content = last_box(text)
    assert (span is None) == (content is None)
    if span:
        assert text[slice(*span)].partition("{")[2] == f"{content}}}"


# Intervals and summaries


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.27753),  # z² / (n + z²)
        (5, 10, 0.23659, 0.76341),
        (10, 10, 0.72247, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=1e-5)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_its_proportion_and_is_symmetric(case: tuple[int, int]) -> None:
    successes, n = case
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    assert wilson(n - successes, n) == pytest.approx((1 - high, 1 - low))
    for bound in {low, high} - {0.0, 1.0}:  # the definition: the observed is 1.96 errors of the bound away
        error = math.sqrt(bound * (1 - bound) / n)
        assert abs(successes / n - bound) / error == pytest.approx(1.959964, rel=1e-5)


def test_wilson_refuses_more_successes_than_tries() -> None:
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


def test_summary() -> None:
    summary = summary_of([RIGHT, WRONG, PROSE, episode(correct=None)])
    assert summary["accuracy"] == pytest.approx(2 / 3)
    assert summary["n"] == 3
    assert summary["ci95"] == list(wilson(2, 3))
    assert summary["code_ratio"] == 0.5
    assert summary["pass_ratio"] == 0.5
    assert summary_of([PROSE])["pass_ratio"] is None
    assert summary_of([])["accuracy"] is None
    json.dumps(summary, allow_nan=False)


def test_heldout_metrics() -> None:
    metrics = heldout_metrics("../data/mawps.jsonl", summary_of([PROSE]))
    low, high = wilson(1, 1)
    assert metrics == {
        "heldout/mawps/accuracy": 1.0,
        "heldout/mawps/ci_low": low,
        "heldout/mawps/ci_high": high,
        "heldout/mawps/code_ratio": 0.0,
    }
    assert [slug(name) for name in ("built-in", "hf:a/b:test", "///", "x.parquet")] == [
        "built_in", "b_test", "tasks", "x",
    ]  # fmt: skip
