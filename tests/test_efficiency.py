"""What calls were good for, and what they cost."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_kit import calling, judged, trajectory

from torl.config import Correctness, Efficiency
from torl.errors import VerifierFault
from torl.insight.metrics import rollout_metrics
from torl.rewards.calls import calls_of
from torl.rewards.efficiency import ToolEfficiency, cost
from torl.rewards.mentions import any_said, numbers, taken_up
from torl.types import Group, ToolResult, Trajectory

ANSWER = r"So it is \boxed{42}."
CODE = calling("print(6 * 7)")
FAILED = ToolResult("NameError: x", status="error")
REFUSED = ToolResult("Error: no tool calls left", status="no_calls_left", executed=False)


def kinds(made: Trajectory) -> list[str]:
    return [str(call.kind) for call in calls_of(made)]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([ANSWER], []),
        ([(CODE, "42"), ANSWER], ["fresh"]),
        ([(CODE, FAILED), (calling("x = 42\nx"), "42"), ANSWER], ["fresh", "fresh"]),
        ([(CODE, REFUSED), ANSWER], []),
        ([(CODE, "42"), (CODE, "42"), ANSWER], ["fresh", "redundant"]),
        ([(CODE, "41"), ANSWER], ["unused"]),
        ([(CODE, "42"), ("```python\nprint(42 + 1)\n```\n```output", "43"), "So 43."], ["fresh", "fresh"]),
        ([(CODE, "(no output: print the values you need)"), ANSWER], ["unused"]),
        ([(CODE, "42")], ["unused"]),  # cut off behind it
        ([("Clearly \\boxed{42}.\n" + CODE, "42"), "Indeed 42."], ["after_answer"]),
        ([ANSWER, (CODE, "42"), "Indeed 42."], ["after_answer"]),
        # A box that a later one replaces is no final answer.
        ([("First \\boxed{41}.\n" + CODE, "42"), ANSWER], ["fresh"]),
        ([(CODE, "42"), ("It is \\boxed{42}.\n" + CODE, "42"), "Yes."], ["fresh", "after_answer"]),
        # A box in code or in an output is none.
        ([(calling("r'\\boxed{42}'"), r"\boxed{42}"), (calling("1"), "1"), "42, 1"], ["fresh", "fresh"]),
        ([(CODE, FAILED), (CODE, FAILED), ANSWER], ["fresh", "redundant"]),
        ([(CODE, REFUSED), (CODE, "42"), ANSWER], ["fresh"]),  # the refused one ran nothing
    ],
)  # fmt: skip
def test_kinds_of_calls(turns: list[Any], expected: list[str]) -> None:
    assert kinds(trajectory(*turns)) == expected


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("print(6*7)", "print( 6 * 7 )  # again", True),
        ("x = 'a'\nprint(x)", '\nx = "a"\n\nprint(x)\n', True),
        ("print(6 * 7)", "print(7 * 6)", False),
        ("x = 1\nprint(x)", "y = 1\nprint(y)", False),
        ("print(1", " print(1 ", True),  # does not parse: compared as text
        ("print(1", "print( 1", False),
        ("'\\d'", '"\\d"', True),
        ("(" * 300 + ")" * 300, "(" * 300 + ")" * 300 + " ", True),
        ("x\0", "x\0", True),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid escape")
def test_the_same_program_again(first: str, second: str, same: bool) -> None:
    made = trajectory((calling("0"), "1"), (calling("0"), "1"), "1")
    for turn, code in zip(made.turns, (first, second), strict=False):
        assert turn.call is not None
        object.__setattr__(turn.call, "text", code)
    assert kinds(made) == ["fresh", "redundant" if same else "fresh"]


def test_other_tools_text_is_not_read_as_python() -> None:
    made = trajectory((calling("a  # b"), "1"), (calling("a"), "1"), "1")
    for turn in made.turns[:2]:
        assert turn.call is not None
        object.__setattr__(turn.call, "name", "lookup")
    assert kinds(made) == ["fresh", "fresh"]


@pytest.mark.parametrize(
    ("observation", "later", "expected"),
    [
        ("42", "so 42", True),
        ("42", "so 421", False),
        ("42", "so x42", False),
        ("-42", "minus 42", True),
        ("3.14159", "about 3.14", True),
        ("3.14159", "about 3.15", False),
        ("3.14159", "about 3", True),
        ("0.3", "0 of them", False),  # by rounding to 0 anything would be said
        ("0", "0 of them", True),
        ("0.125", "12.5%", True),
        ("1234567", "1,234,567", True),
        ("1e3", "1000", True),
        ("[2, 3]", "the root 3", True),
        ("[2, 3]", "no roots", False),
        ("372.0", "372", True),
        ("9" * 400, "9" * 400, True),
        ("True", "hence it holds", True),
        ("None", "hence", True),
        ("Monday", "On monday", True),
        ("Monday", "On Sunday", False),
        ("x", "so x", True),
        ("", "so 42", False),
        ("  \n", "so 42", False),
    ],
)
def test_taken_up(observation: str, later: str, expected: bool) -> None:
    assert taken_up(observation, later) is expected


def test_the_note_of_a_cut_is_no_result() -> None:
    made = trajectory((CODE, "7\n[... 42 characters cut ...]\n8"), ANSWER)
    assert kinds(made) == ["unused"]


@given(st.lists(st.decimals(-(10**6), 10**6, places=3), max_size=5), st.text(max_size=30))
def test_every_number_is_said_by_its_own_text(values: list[Any], text: str) -> None:
    shown = numbers(" ".join(map(str, values)))
    assert [number.value for number in shown] == [abs(value) for value in values]
    assert all(any_said([number], shown) for number in shown)
    taken_up(text, text)  # whatever it is, it does not fail


# --- costs ------------------------------------------------------------------------------


def priced(made: Trajectory, **keys: Any) -> float:
    return cost(calls_of(made), Efficiency(**keys))


def test_cost_by_hand() -> None:
    """Four calls: fresh, redundant, unused, behind the answer; 0.5 s each."""
    half = [ToolResult(text, run_s=0.5) for text in ("42", "42", "8", "42")]
    made = trajectory(
        (CODE, half[0]), (CODE, half[1]), (calling("7"), half[2]), (ANSWER + "\n" + CODE, half[3]), "Yes."
    )
    assert kinds(made) == ["fresh", "redundant", "unused", "after_answer"]
    assert priced(made, per_call=0.1, free_calls=1) == pytest.approx(0.3)
    assert priced(made, per_call=0.1, free_calls=9) == 0
    assert priced(made, per_call=0, per_second=0.2) == pytest.approx(0.4)
    further = {"per_call": 0.0, "redundant": 0.01, "unused": 0.02, "after_answer": 0.04}
    assert priced(made, **further) == pytest.approx(0.07)
    assert priced(made, **{**further, "per_call": 0.1, "free_calls": 0}) == pytest.approx(0.47)


def test_only_right_trajectories_pay_and_never_more_than_the_bound() -> None:
    rewards = {"tool_efficiency": 1.0, "correctness": 1.0}
    calls = [(calling(f"print({n})"), "42") for n in range(20)]
    for answer, reward, part in ((r"\boxed{42}", 0.5, -0.5), (r"\boxed{41}", -1.0, 0.0), ("?", -1.0, 0.0)):
        made = judged(trajectory(*calls, answer), rewards)
        assert made.reward_parts["tool_efficiency"] == part
        assert made.reward == reward
    assert judged(trajectory(calls[0], ANSWER), rewards).reward == 1.0  # the first is free
    assert judged(trajectory(*calls[:3], ANSWER), rewards).reward == pytest.approx(0.8)


@given(
    st.integers(0, 12),
    st.builds(
        Efficiency,
        per_call=st.floats(0, 2),
        redundant=st.floats(0, 2),
        per_second=st.floats(0, 2),
        most=st.floats(0, 1.99),
        free_calls=st.integers(0, 3),
    ),
)
def test_a_right_trajectory_is_worth_more_than_a_wrong_one_whatever_it_costs(
    n: int, config: Efficiency
) -> None:
    made = trajectory(*[(CODE, ToolResult("42", run_s=3.0))] * n, ANSWER)
    scale = Correctness()
    made.correct = False
    assert ToolEfficiency(config)(made, made.task) == 0
    made.correct = True
    assert scale.right + ToolEfficiency(config)(made, made.task) > scale.wrong


def test_without_a_verdict_nothing_is_charged_or_made_up() -> None:
    made = trajectory((CODE, "42"), ANSWER)
    with pytest.raises(VerifierFault, match="not decided"):
        ToolEfficiency(Efficiency())(made, made.task)


def test_the_counts_are_metrics() -> None:
    first = trajectory((CODE, "42"), (CODE, "42"), (calling("7"), "7"), ANSWER)
    second = trajectory((ANSWER + "\n" + CODE, "42"))
    metrics = rollout_metrics([Group(first.task, [first, second])])
    found = [metrics[f"rollout/{kind}_calls"] for kind in ("redundant", "unused", "after_answer")]
    assert found == [0.5, 0.5, 0.5]
