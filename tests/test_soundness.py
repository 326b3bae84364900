"""The checks of soundness, one by one: what violates them, and what does not."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_kit import calling, judged, trajectory

from torl.config import Soundness
from torl.rewards import settings
from torl.rewards.soundness import (
    CHECKS,
    agrees_with_tool,
    answer_once,
    format_kept,
    language_kept,
    no_invented_output,
    no_repetition,
    repeated_share,
)
from torl.types import ToolResult, Trajectory

ANSWER = r"So it is \boxed{42}."
CODE = calling("print(6 * 7)")
SOUND = trajectory(("Let me compute.\n" + CODE, "42"), ANSWER + "<|im_end|>")
UNSOUND = trajectory(
    (r"First \boxed{1}." + "\n" + CODE, "42"),
    r"User: это \boxed{41} и \boxed{43}" + " совсем другой язык здесь" * 30 + "\n```python\nprint(1",
    problem="How many are there of them?",
)
UNSOUND.invented_outputs = 1


def test_the_recipes_names_are_the_checks() -> None:
    assert tuple(CHECKS) == settings.CHECKS == tuple(Soundness().checks)


@pytest.mark.parametrize("name", CHECKS)
def test_a_sound_trajectory_and_an_unsound_one(name: str) -> None:
    assert CHECKS[name](SOUND) is True
    assert CHECKS[name](UNSOUND) is (name == "agrees_with_tool")  # there is no telling in such a text


def test_the_parts_are_those_that_the_recipe_names() -> None:
    every = judged(UNSOUND, {"soundness": 0.5, "correctness": 1.0})
    assert every.reward_parts == {
        "soundness/answer_once": -1.0,
        "soundness/agrees_with_tool": 0.0,
        "soundness/no_invented_output": -1.0,
        "soundness/no_repetition": -1.0,
        "soundness/language_kept": -1.0,
        "soundness/format_kept": -1.0,
        "correctness": -1.0,
    }
    assert every.reward == -1.0 - 0.5 * 5
    some = judged(SOUND, {"soundness": 1.0}, soundness=Soundness(checks=["format_kept", "answer_once"]))
    assert some.reward_parts == {"soundness/format_kept": 0.0, "soundness/answer_once": 0.0}


@given(st.lists(st.text(max_size=60), max_size=3), st.text(max_size=20))
def test_no_text_makes_a_check_fail(texts: list[str], observation: str) -> None:
    made = trajectory(*[(text, observation) for text in texts], r"\boxed{1}", problem=observation)
    for check in CHECKS.values():
        assert check(made) in (True, False)


def cases(check: Callable[[Trajectory], bool], rows: list[tuple[list[Any], bool]], **fields: Any) -> None:
    for turns, expected in rows:
        assert check(trajectory(*turns, **fields)) is expected, turns


def test_answer_once() -> None:
    cases(
        answer_once,
        [
            ([ANSWER], True),
            ([(CODE, "42"), ANSWER], True),
            (["No box."], False),
            ([], False),
            ([r"\boxed{42} and \boxed{42}"], False),
            ([(r"\boxed{41}" + "\n" + CODE, "42"), ANSWER], False),
            ([r"\boxed{\boxed{5}}"], True),
            ([ANSWER + " That was all." + "<|im_end|>"], True),
            ([ANSWER + " word" * 24], True),
            ([ANSWER + " word" * 26], False),
            ([ANSWER + "\n```python\nprint(1)\n```"], False),
            ([(ANSWER + "\n" + CODE, "42"), "Yes."], False),
            ([ANSWER + "\n```output\n42\n```\n"], False),
            (["```python\nr'\\boxed{1}'\n```\n" + ANSWER], True),
            ([r"\boxed{4"], False),
        ],
    )


@pytest.mark.parametrize(
    ("result", "after", "expected"),
    [
        ("42", r"So it is \boxed{42}.", True),
        ("42", r"So it is \boxed{43}.", False),
        ("42", r"The code prints 42, so it is \boxed{24}.", False),
        ("42", r"42 minus 1 is \boxed{41}.", True),  # computed on
        ("41.9999", r"\boxed{42}", True),
        ("3.14159", r"\boxed{3.14}", True),
        ("3.14159", r"\boxed{3.41}", False),
        ("-42", r"\boxed{42}", True),  # sizes are compared
        ("0.5", r"\boxed{\frac{1}{2}}", True),
        ("1/2", r"\boxed{\frac{1}{2}}", True),
        ("0.5", r"\boxed{\frac{1}{3}}", False),
        ("0.12", r"\boxed{12\%}", True),
        ("[2, 3]", r"The larger one: \boxed{3}", True),
        ("[2, 3]", r"Their sum: \boxed{5}", False),  # said straight, without 2 + 3
        ("x**2 + 1", r"\boxed{x^2+1}", True),  # no number
        ("True", r"\boxed{7}", True),
        ("(no output: print the values you need)", r"\boxed{7}", True),
    ],
)
def test_agrees_with_tool(result: str, after: str, expected: bool) -> None:
    assert agrees_with_tool(trajectory((CODE, result), after)) is expected


def test_what_relies_on_no_call_agrees() -> None:
    failed = ToolResult("42", status="error")
    never = ToolResult("42", executed=False)
    cases(
        agrees_with_tool,
        [
            ([r"\boxed{7}"], True),
            ([(CODE, failed), r"\boxed{7}"], True),
            ([(CODE, never), r"\boxed{7}"], True),
            ([(r"\boxed{7}" + "\n" + CODE, "42"), "Hm."], True),  # answered before
            ([(CODE, "42"), "```python\nx\n```\n" + r"\boxed{7}"], True),  # wrote more code
            ([(CODE, "42"), "No idea."], True),
            ([(CODE, "1"), (CODE, "42"), r"\boxed{1}"], False),  # the last one counts
            ([(CODE, "7"), (CODE, failed), r"\boxed{7}"], True),
            ([(CODE, "1"), (CODE, failed), r"\boxed{7}"], True),  # it tried something else since
        ],
    )


def test_no_invented_output() -> None:
    made = trajectory(ANSWER)
    assert no_invented_output(made) is True
    made.invented_outputs = 1
    assert no_invented_output(made) is False


WORDS = " ".join(f"word{n}" for n in range(100))


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0.0),
        ("the " * 39, 0.0),  # too short to tell
        ("the " * 40, 0.75),  # the second run of 10 equals the one before it, shifted by one
        (WORDS, 0.0),
        (WORDS + " " + " ".join(WORDS.split()[:10]), 10 / 110),
        (WORDS + " " + " ".join(WORDS.split()[:9]), 0.0),
        (WORDS + " " + WORDS, 0.5),
        ("猫" * 100, 0.9),
    ],
)
def test_share_of_repeated_words(text: str, share: float) -> None:
    assert repeated_share(text) == pytest.approx(share, abs=0.03)


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12), st.integers(20, 40))
def test_a_loop_of_any_period_is_repetition(period: list[str], times: int) -> None:
    if len(period) * times >= 60:
        assert no_repetition(trajectory(" ".join(period * times))) is False


def test_repeated_code_is_no_repetition() -> None:
    program = "\n".join(f"x{n} = {n}" for n in range(40))
    assert no_repetition(trajectory((calling(program), "1"), (calling(program), "1"), ANSWER)) is True


GERMAN = "Wie viele Karten bleiben übrig?"
CHINESE = "一个长方形的长是12厘米,宽是5厘米,面积是多少?"


@pytest.mark.parametrize(
    ("problem", "text", "expected"),
    [
        ("How many are left?", "Let me think about it, step by step.", True),
        (GERMAN, "Let me think about it, step by step.", True),  # scripts, not languages
        ("How many are left?", "我们先计算一下这个问题的答案,然后再检查一遍结果。", False),
        ("How many are left?", "Let me think about it, 我们 step by step, and then once more.", True),
        (CHINESE, "面积等于长乘以宽,所以面积是 AB = 12 × 5 = 60 平方厘米,答案是六十。", True),
        (CHINESE, "The area is the length times the width, so it is 60.", False),
        (CHINESE, r"面积等于长乘以宽,所以 $\text{S} = \frac{a \times b}{1}$,答案是六十平方厘米。", True),
        ("How many?", "где", True),  # too short to tell
        ("12 * 5 = ?", "Сколько будет, если умножить одно на другое?", True),  # no letters to go by
        ("How many are left?", "α β γ δ ε ζ η θ ι κ λ μ ν ξ ο π ρ σ τ υ φ χ", True),  # signs
        ("Сколько будет?", "Ответ: сорок два, потому что шесть на семь.", True),
    ],
)
def test_language_kept(problem: str, text: str, expected: bool) -> None:
    assert language_kept(trajectory(text, problem=problem)) is expected


def test_code_may_be_in_any_language() -> None:
    program = "# " + "this is an English comment " * 5
    made = trajectory((calling(program, "我们用程序来计算这个问题的答案。\n"), "60"), problem=CHINESE)
    assert language_kept(made) is True


MALFORMED = ToolResult("Error: no code block", status="malformed", executed=False)


def test_format_kept() -> None:
    cases(
        format_kept,
        [
            ([ANSWER], True),
            ([(CODE, "42"), ANSWER], True),
            ([("```python\nprint(1)\n```output", "1"), ANSWER], True),  # the output block closes it
            (["```python\nprint(1"], False),
            (["```python\nprint(1)\n```python\nprint(2)\n```"], False),
            (["```\n42\n```\n"], True),
            (["```output\n42"], False),
            ([("Compute.\n```output", MALFORMED), ANSWER], False),
            (["The answer.\n\nUser: What is 1 + 1?\n"], False),
            (["  Assistant : yes"], False),
            (["The User: line must begin so."], True),
            (["<|im_end|>"], True),
            (["<|im_start|>user"], False),
            (["[INST] more"], False),
            (["```python\nprint('User:')\n```"], True),
        ],
    )
