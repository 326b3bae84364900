"""The ways to decide correctness: strings, numbers, choices, patterns, tests."""

import asyncio
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_kit import calling, judged, trajectory

from torl.config import Correctness
from torl.errors import UserError, VerifierFault
from torl.rewards.choice import chosen
from torl.rewards.deciders import DECIDERS
from torl.rewards.numeric import close, number
from torl.sandbox import Limits, Result, Sandbox
from torl.types import Trajectory


def verdict(made: Trajectory, how: str, *, box: Any = None, **keys: Any) -> bool | None:
    judged(made, config=Correctness(how=how, **keys), box=box)  # type: ignore[arg-type]
    return made.correct


def boxed(text: str) -> str:
    return rf"So it is \boxed{{{text}}}."


def test_every_name_of_the_recipe_has_its_decider() -> None:
    assert set(DECIDERS) == set(Correctness.model_fields["how"].annotation.__args__)  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["exact", "numeric", "choice", "regex"])
def test_all_but_tests_need_an_answer_in_the_task(how: str) -> None:
    keys = {"pattern": "x"} if how == "regex" else {}
    with pytest.raises(UserError, match="task task has no answer"):
        verdict(trajectory(boxed("1"), answer=" "), how, **keys)


# --- exact ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reference", "ignore_case", "expected"),
    [
        ("ab c", "ab c", False, True),
        ("  ab \n  c ", "ab c", False, True),
        ("ab c", "abc", False, False),
        ("AB c", "ab c", False, False),
        ("AB c", "ab C", True, True),
        ("STRASSE", "straße", True, True),
        ("1.0", "1", False, False),
        (r"\frac12", r"\frac{1}{2}", False, False),
    ],
)
def test_exact(answer: str, reference: str, ignore_case: bool, expected: bool) -> None:
    made = trajectory(boxed(answer), answer=reference)
    assert verdict(made, "exact", ignore_case=ignore_case) is expected
    assert made.reward == (1.0 if expected else -1.0)


# --- numeric ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("372", 372),
        (" -3.50 ", Fraction(-7, 2)),
        ("+.5", Fraction(1, 2)),
        ("−2", -2),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("1{,}234", 1234),
        (r"1\,234", 1234),
        ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        ("1.5/2", Fraction(3, 4)),
        ("2 1/2", Fraction(5, 2)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{1.5}{2}", Fraction(-3, 4)),
        ("1e-5", Fraction(1, 100000)),
        ("2.5E3", 2500),
        (r"1.2 \times 10^{-3}", Fraction(12, 10000)),
        ("1.2*10^3", 1200),
        ("1.2×10**3", 1200),
        (r"3\cdot10^2", 300),
        ("10^6", 10**6),
        ("-10^6", -(10**6)),
        ("12%", Fraction(12, 100)),
        (r"12.5\%", Fraction(1, 8)),
        ("3/4 %", Fraction(3, 400)),
        ("$42$", 42),
        (r"\(42\)", 42),
        (r"$$\frac{1}{2}$$", Fraction(1, 2)),
    ],
)
def test_a_number(text: str, value: Fraction | int) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "five", "5 cm", "$5", "5x", "1,23", "1/0", r"\frac{1}{0}", "12:30", "1e", "nan", "inf", "0x10",
     "3 4", "1_000", "2^10", "5%%", "1/2/3", "--5", "5-3", r"\pi", "9" * 1001, "10^9999", "%"],
)  # fmt: skip
def test_no_number(text: str) -> None:
    assert number(text) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**12), max_value=10**12))
def test_a_decimal_is_read_exactly_however_it_is_written(value: Any) -> None:
    exact = Fraction(value)
    for written in (str(value), f"{value:,}", f"{value:e}", f"{value * 100}%", f"${value}$"):
        assert number(written) == exact, written


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**9))
def test_a_fraction_is_read_exactly(top: int, bottom: int) -> None:
    exact = Fraction(top, bottom)
    assert number(f"{top}/{bottom}") == number(rf"\frac{{{top}}}{{{bottom}}}") == exact


@given(st.text(max_size=40))
def test_no_text_makes_the_parser_fail(text: str) -> None:
    number(text)
    chosen(text, {"A": text[:3], "B": "b"})


@given(st.fractions(), st.fractions(), st.floats(0, 0.5), st.floats(0, 10))
def test_the_tolerance_is_the_larger_one(a: Fraction, b: Fraction, rel: float, absolute: float) -> None:
    expected = abs(a - b) <= Fraction(rel) * abs(b) or abs(a - b) <= Fraction(absolute)
    assert close(a, b, rel_tol=rel, abs_tol=absolute) is expected


@pytest.mark.parametrize(
    ("answer", "reference", "keys", "expected"),
    [
        ("0.3333333", "1/3", {}, True),
        ("0.333", "1/3", {}, False),
        ("0.333", "1/3", {"rel_tol": 0.01}, True),
        ("99", "100", {"rel_tol": 0.01}, True),
        ("98.9", "100", {"rel_tol": 0.01}, False),
        ("0.01", "0", {"rel_tol": 0.5}, False),
        ("0.01", "0", {"abs_tol": 0.01}, True),
        ("12%", "0.12", {}, True),
        ("12%", "12", {}, False),  # nothing is guessed
        ("5 cm", "5", {}, False),
        ("-5", "5", {"rel_tol": 0.9}, False),
    ],
)
def test_numeric(answer: str, reference: str, keys: dict[str, float], expected: bool) -> None:
    assert verdict(trajectory(boxed(answer), answer=reference), "numeric", **keys) is expected


def test_a_reference_that_is_no_number_is_the_users_error() -> None:
    for made in (trajectory(boxed("1"), answer="one"), trajectory("no answer", answer="one")):
        with pytest.raises(UserError, match=r"task task: correctness.how=numeric.*'one' is no number"):
            verdict(made, "numeric")


# --- choice -----------------------------------------------------------------------------

OPTIONS = {"A": "Paris", "B": "London", "C": "New York", "D": "New York"}


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        (" (B) ", "B"),
        ("[B]", "B"),
        ("B.", "B"),
        ("B)", "B"),
        ("B:", "B"),
        ("(b).", "B"),
        ("(B) London", "B"),
        ("B) a town", "B"),
        ("B. London", "B"),
        ("B: London", "B"),
        (r"\text{B}", "B"),
        (r"\textbf{(B)}", "B"),
        (r"\textbf{(B) } \text{London}", "B"),
        (r"\textbf{(B)}\ x", "B"),
        (r"\text{(B) London}", "B"),
        ("$B$", "B"),
        ("**B**", "B"),
        ("Z", "Z"),
        ("A or B", None),
        ("A, B", None),
        ("AB", None),
        ("A) or B)", None),
        ("(A) (B)", None),
        ("A) x, B) y", None),
        ("B) not A.", None),
        ("A. C", "A"),
        ("London", None),
        ("", None),
        ("the answer is B", None),
        ("3", None),
    ],
)
def test_the_letter_that_a_text_chooses(text: str, letter: str | None) -> None:
    assert chosen(text, {}) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("London", "B"),
        (" london. ", "B"),
        (r"\text{London}", "B"),
        ("B) London", "B"),
        ("(B) the capital of England", "B"),
        ("B) Paris", None),  # a letter with another option's text
        ("New York", None),  # two options have it
        ("C) New York", None),
        ("E", None),  # no option
        ("Berlin", None),
    ],
)
def test_with_known_options(text: str, letter: str | None) -> None:
    assert chosen(text, OPTIONS) == letter


def test_a_letter_that_is_another_options_text_is_ambiguous_but_not_in_the_reference() -> None:
    """Of the options C, D and E, the answer E can only be meant as the text of the letter C."""
    notes = ["C", "D", "E"]
    assert verdict(trajectory(boxed("C"), answer="C", options=notes), "choice") is False
    assert verdict(trajectory(boxed("E"), answer="C", options=notes), "choice") is True
    assert verdict(trajectory(boxed("(C) E"), answer="C", options=notes), "choice") is True


def test_choice() -> None:
    for answer, reference in (("(B) London", "B"), ("london", "(B)"), ("B", "London")):
        made = trajectory(boxed(answer), answer=reference, options=["Paris", "London"])
        assert verdict(made, "choice") is True
    assert verdict(trajectory(boxed("A"), answer="B"), "choice") is False
    assert verdict(trajectory("B", answer="B"), "choice") is False  # no box


@pytest.mark.parametrize(
    ("reference", "meta", "message"),
    [
        ("both", {}, "'both' is no letter of a choice"),
        ("C", {"options": ["x", "y"]}, r"\(its options: A, B\)"),
        ("A", {"options": "x, y"}, r"meta\['options'\] must be a list"),
        ("A", {"options": {"first": "x"}}, r"meta\['options'\] must be a list"),
    ],
)
def test_a_task_without_a_clear_choice_is_the_users_error(
    reference: str, meta: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=f"task task.*{message}"):
        verdict(trajectory(boxed("A"), answer=reference, **meta), "choice")


# --- regex ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "pattern", "answer"),
    [
        (["The answer is 41. The answer is 42."], r"answer is (\d+)", "42"),
        (["#### 42 "], r"#### *(.+)", "42"),
        (["a7 b42"], r"\d+", "42"),  # the whole match
        (["x=1", "x=42", "nothing"], r"x=(\d+)", "42"),
        (["no"], r"answer is (\d+)", None),
        (["answer:"], r"answer:(\d*)", None),  # empty
        (["answer"], r"answer(:\d+)?", None),  # the group took no part
        (["```python\nprint('answer is 42')\n```"], r"answer is (\d+)", None),  # code is not prose
        (["```output\nanswer is 42\n```\n"], r"answer is (\d+)", None),
        ([(calling("1"), "answer is 42"), "Fine."], r"answer is (\d+)", None),
        ([(calling("1", "answer is 42\n"), "answer is 1"), "Fine."], r"answer is (\d+)", "42"),
    ],
)
def test_regex(turns: list[Any], pattern: str, answer: str | None) -> None:
    made = trajectory(*turns)
    assert verdict(made, "regex", pattern=pattern) is (answer == "42")
    assert made.answer == answer


def test_regex_may_ignore_case() -> None:
    made = trajectory("It is Blue.", answer="blue")
    assert verdict(made, "regex", pattern=r"It is (\w+)") is False
    assert verdict(made, "regex", pattern=r"It is (\w+)", ignore_case=True) is True


def test_a_pattern_that_hangs_is_undecided_and_stops_nobody() -> None:
    made = trajectory("a" * 60 + "!")
    started = time.perf_counter()
    with pytest.raises(VerifierFault, match=r"correctness on trajectory task#0.*looking for '\(a\+\)\+\$'"):
        verdict(made, "regex", pattern="(a+)+$", timeout_s=0.5)
    assert (made.correct, made.reward) == (None, None)
    assert time.perf_counter() - started < 20  # a worker's start, on a busy machine


def test_a_prose_longer_than_a_pipe_is_searched() -> None:
    assert verdict(trajectory("z" * 300_000 + " is 42"), "regex", pattern=r"is (\d+)") is True


# --- tests ------------------------------------------------------------------------------

TESTS = "assert double(2) == 4\nassert double(-1) == -2"
GOOD = "def double(x):\n    return 2 * x"


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    made = Sandbox(Limits(cpu_s=2.0, timeout_s=20.0, workers=1), preload=())
    yield made
    asyncio.run(made.close())


class Kept:
    """The box of the module, which a judge must not close."""

    def __init__(self, box: Sandbox) -> None:
        self.run, self.start = box.run, box.start

    async def close(self) -> None: ...


def passes(box: Sandbox, program: str, tests: Any = TESTS) -> bool | None:
    made = trajectory(f"Here it is.\n```python\n{program}\n```\nDone.", answer="", tests=tests)
    return verdict(made, "tests", box=Kept(box))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (GOOD, True),
        ("def double(x):\n    return x + 2", False),
        ("def double(x):\n    return", False),
        ("", False),
        ("def double(x:", False),
        (f"{GOOD}\nprint(double(4))", True),
        (f"from __future__ import annotations\n{GOOD}", True),
        (f"{GOOD}\nif __name__ == '__main__':\n    print(double(int(input())))", True),
        (f"from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\n{GOOD}", True),
        (f"{GOOD}\nprint('x' * 300_000)", True),  # what is cut off is not the word
        (f"{GOOD}\nimport atexit\natexit.register(lambda: print('y' * 300_000))", True),
        (f"{GOOD}\nimport threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()", True),
    ],
)
def test_programs(box: Sandbox, program: str, expected: bool) -> None:
    assert passes(box, program) is expected


BAD = "def double(x):\n    return 0\n"
FORGERIES = {
    "exit": "exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "os._exit": "import os\nos._exit(0)",
    "exit when called": "import os\ndef double(x):\n    os._exit(0)",
    "SystemExit when called": "def double(x):\n    raise SystemExit(0)",
    "prints": "print('OK\\npassed\\nall tests passed')\nimport os\nos._exit(0)",
    "prints its input": "import sys\nprint(sys.stdin.read())\nprint(open(0).read())",
    "prints its source": BAD + "import inspect, sys\nprint(inspect.getsource(sys.modules['__main__']))",
    "prints all frames": BAD
    + "import sys\nf = sys._getframe()\nwhile f:\n    print(f.f_locals, f.f_code)\n    f = f.f_back",
    "prints all strings": BAD
    + "import gc\nprint([o for o in gc.get_objects() if isinstance(o, (list, dict, tuple))])",
    "prints all when called": "import sys\ndef double(x):\n    f = sys._getframe()\n"
    "    while f:\n        print(f.f_locals)\n        f = f.f_back",
    "replaces print": BAD + "import builtins\nbuiltins.print = lambda *a: None",
    "replaces exec": BAD + "import builtins\nbuiltins.exec = lambda *a, **k: None",
    "replaces compile": BAD + "import builtins\nbuiltins.compile = lambda *a, **k: '0'",
    "replaces os": BAD + "import os\nos.read = lambda *a: b'pass'\nos._exit = lambda *a: None",
    "replaces AssertionError": BAD + "import builtins\nbuiltins.AssertionError = SystemExit",
    "an exception hook": BAD + "import sys\nsys.excepthook = lambda *a: print('passed')",
    "a handler at exit": BAD + "import atexit, os\natexit.register(lambda: os._exit(0))",
    "catches": "try:\n    " + BAD.replace("\n", "\n    ").strip() + "\nexcept BaseException:\n    pass",
    "closes everything": GOOD + "\nimport os\nos.closerange(0, 100)",
    "waits for ever": "while True: pass",
    "takes all memory": BAD + "x = [0] * 10**10",
    "the harness by name": BAD + "_torl_run = lambda *a: None",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_do_not_pass(box: Sandbox, name: str) -> None:
    assert passes(box, FORGERIES[name]) is False


def test_what_is_not_prevented_is_as_documented(box: Sandbox) -> None:
    """Objects that equal everything. Tests that compare types, too, are not deceived."""
    liar = "class Yes:\n    __eq__ = lambda *a: True\ndef double(x):\n    return Yes()"
    assert passes(box, liar) is True
    assert passes(box, liar, "assert type(double(2)) is int and double(2) == 4") is False


def test_tests_may_be_pieces_and_use_their_own_imports(box: Sandbox) -> None:
    pieces = ["import math", "assert math.isclose(double(0.1), 0.2)", "assert double('ä') == 'ää'"]
    assert passes(box, GOOD, pieces) is True
    assert passes(box, GOOD, [*pieces, "assert False"]) is False


def test_the_last_block_of_python_counts(box: Sandbox) -> None:
    first = (calling("def double(x):\n    return 0"), "(no output)")
    cases: list[tuple[list[Any], bool]] = [
        ([first, f"```python\n{GOOD}\n```"], True),
        ([f"```python\n{GOOD}\n```\n", first], False),
        ([f"```\n{GOOD}\n```\n```json\n{{}}\n```"], True),
        (["No program."], False),
    ]
    for turns, expected in cases:
        assert verdict(trajectory(*turns, answer="", tests=TESTS), "tests", box=Kept(box)) is expected


@pytest.mark.parametrize(
    ("tests", "message"),
    [(None, "needs meta"), ("  ", "needs meta"), (5, "needs meta"), ("assert (", "are not Python")],
)
def test_a_task_without_tests_is_the_users_error(box: Sandbox, tests: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"task task.*{message}"):
        passes(box, GOOD, tests)


def test_a_sandbox_that_fails_is_the_worlds_fault() -> None:
    class Broken:
        closed = False

        async def run(self, code: str, *, stdin: str = "") -> Result:  # noqa: ARG002
            return Result("sandbox_error", reason="no process could be had")

        async def close(self) -> None:
            self.closed = True

    broken = Broken()
    made = trajectory(f"```python\n{GOOD}\n```", tests=TESTS)
    with pytest.raises(VerifierFault, match="no process could be had"):
        verdict(made, "tests", box=broken)
    assert (made.reward, made.correct, broken.closed) == (None, None, True)
