"""Built-in tasks: right answers, many phrasings, a dial that works, sides that never meet."""

import hashlib
import itertools
import json
import math
import os
import string
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from torl.errors import Bug, UserError
from torl.tasks import KINDS, generate
from torl.tasks.generators import base
from torl.tasks.generators.base import Dice, Problem, draw_words, exact, kind, side
from torl.tasks.load import normalised
from torl.types import Task

BENCHMARKS = Path(__file__).parents[2] / "shared" / "benchmarks"
LEVELS = (0.0, 0.3, 0.6, 1.0)
ALL_KINDS = sorted(KINDS)

Params = dict[str, Any]


# ---- The generators' answers, found again by another method --------------------------------


def chain(p: Params) -> int:
    value = p["start"]
    for op, b in p["steps"]:
        value = {"plus": value + b, "minus": value - b, "times": value * b}[op]
    return int(value)


def division(p: Params) -> int:
    rest, times = p["a"], 0
    while rest >= p["b"]:
        rest, times = rest - p["b"], times + 1
    return times if p["form"] == "quotient" else int(rest)


def modular_power(p: Params) -> int:
    value = 1
    for _ in range(p["b"]):
        value = value * p["a"] % p["m"]
    return value


def percentage(p: Params) -> Fraction:
    sign = {"of": (0, 1), "off": (1, -1), "up": (1, 1)}[p["form"]]
    return p["n"] * (sign[0] + sign[1] * Fraction(p["p"], 100))


def digit_sum(p: Params) -> int:
    value = {"number": p["a"], "product": p["a"] * p["b"], "power": p["a"] ** p["b"]}[p["form"]]
    total = 0
    while value:
        value, digit = divmod(value, 10)
        total += digit
    return int(total)


def primes(p: Params) -> int:
    n = p["n"]
    found: dict[str, Callable[[int], int]] = {
        "below": lambda n: sum(1 for _ in sympy.primerange(n)),
        "largest": sympy.prevprime,
        "next": sympy.nextprime,
        "nth": sympy.prime,
    }
    return int(found[p["form"]](n))


def units(p: Params) -> int:
    """By steps through the base units, not by the generator's factors."""
    seconds = {"seconds": 1, "minutes": 60, "hours": 60**2, "days": 24 * 60**2, "weeks": 7 * 24 * 60**2}
    inches = {"inches": 1, "feet": 12, "yards": 3 * 12, "miles": 1760 * 3 * 12}
    small = {"centimeters": 1, "meters": 100, "kilometers": 100 * 1000, "grams": 1, "kilograms": 1000}
    other = {"months": 1, "years": 12, "milliliters": 1, "liters": 1000, "ounces": 1, "pounds": 16}
    more = {"cups": 1, "gallons": 4 * 2 * 2, "eggs": 1, "dozen eggs": 12}
    size = seconds | inches | small | other | more
    total = Fraction(size[p["large"]], size[p["small"]]) * p["a"]
    return p["a"] if p["form"] == "back" else int(total + p["b"])


def duration(p: Params) -> int:
    order = ["days", "hours", "minutes", "seconds"]
    total, first = p["amounts"][0], order.index(p["largest"])
    for unit, amount in zip(order[first + 1 :], p["amounts"][1:], strict=False):
        total = total * {"hours": 24}.get(unit, 60) + amount
    return int(total)


def speed(p: Params) -> Fraction:
    v, t = Fraction(p["v"]), Fraction(p["t"])
    return {"distance": v * t, "time": t, "speed": v}[p["form"]]


def rectangle(p: Params) -> int:
    a, b = p["a"], p["b"]
    return int({"area": sum(a for _ in range(b)), "perimeter": a + b + a + b, "side": a}[p["form"]])


def compare(p: Params) -> int:
    other = p["a"] * p["k"] + p["c"]
    return int({"together": p["a"] + other, "apart": other - p["a"], "more": other}[p["form"]])


def ages(p: Params) -> int:
    a, k, y = p["a"], p["k"], p["y"]
    return int({"in": a * k + y, "ago": a * k - y, "sum": (a + k) + (a + y + k)}[p["form"]])


ORACLES: dict[str, Callable[[Params], Any]] = {
    "arithmetic": lambda p: chain({"start": p["a"], "steps": [(p["op"], p["b"])]}),
    "chain": chain,
    "division": division,
    "power": lambda p: math.prod([p["a"]] * p["b"]),
    "modular_power": modular_power,
    "percentage": percentage,
    "average": lambda p: sum(Fraction(n, len(p["numbers"])) for n in p["numbers"]),
    "gcd": lambda p: next(d for d in range(p["a"], 0, -1) if p["a"] % d == 0 == p["b"] % d),
    "lcm": lambda p: sympy.ilcm(p["a"], p["b"]),
    "multiples": lambda p: sum(1 for n in range(p["low"], p["high"] + 1) if n % p["k"] == 0),
    "digit_sum": digit_sum,
    "divisors": lambda p: sympy.divisor_sigma(p["n"], {"count": 0, "sum": 1}[p["form"]]),
    "primes": primes,
    "range_sum": lambda p: sum(range(p["low"], p["high"] + 1, p["step"])),
    "square_sum": lambda p: sum(n ** p["p"] for n in range(p["low"], p["high"] + 1)),
    "factorial": lambda p: math.prod(range(p["n"] - p["k"] + 1, p["n"] + 1)),
    "choose": lambda p: math.prod(range(p["n"] - p["k"] + 1, p["n"] + 1)) // math.factorial(p["k"]),
    "units": units,
    "duration": duration,
    "rectangle": rectangle,
    "speed": speed,
    "price": lambda p: sum(Fraction(p["cents"], 100) for _ in range(p["n"])),
    "basket": lambda p: Fraction(p["n"] * p["cents"] + p["m"] * p["other_cents"], 100),
    "change": lambda p: Fraction(p["paid"] - p["n"] * p["cents"], 100),
    "savings": lambda p: p["start"] + sum(p["a"] for _ in range(p["n"])) - p["b"],
    "groups": lambda p: p["a"] * p["b"] + p["c"] * {"less": -1, "more": 1}[p["form"]],
    "three_steps": lambda p: sum([p["a"]] * p["b"]) + p["c"] - p["d"],
    "share": lambda p: Fraction(p["a"] + p["b"], p["k"]),
    "compare": compare,
    "ages": ages,
}

# What a phrase must tell, so that its question has one answer: by form, or for all ("").
TOLD: dict[str, dict[str, str]] = {
    "arithmetic": {"": "a b"},
    "chain": {"": "expression|start steps"},
    "division": {"": "a b"},
    "power": {"": "a b|a ordinal"},
    "modular_power": {"": "a b m"},
    "percentage": {"": "p n"},
    "average": {"": "numbers"},
    "gcd": {"": "a b"},
    "lcm": {"": "a b"},
    "multiples": {"": "k low high"},
    "digit_sum": {"": "number"},
    "divisors": {"": "n"},
    "primes": {"": "n"},
    "range_sum": {"": "which low high"},
    "square_sum": {"": "low high powers|low high power|low high p"},
    "factorial": {"": "n k|n"},
    "choose": {"": "n k"},
    "units": {"plain": "a large small", "sum": "a b large small", "back": "total large small"},
    "duration": {"": "time unit"},
    "rectangle": {"area": "a b", "perimeter": "a b", "side": "area b"},
    "speed": {"distance": "v t", "time": "v d", "speed": "d t"},
    "price": {"": "price n"},
    "basket": {"": "n m price other_price"},
    "change": {"": "n price paid"},
    "savings": {"": "start a n b|start a n"},
    "groups": {"": "a b c"},
    "three_steps": {"": "a b c d"},
    "share": {"": "a b k"},
    "compare": {"together": "a k", "apart": "a k", "more": "a k c"},
    "ages": {"": "a k y"},
}


def draw(name: str, difficulty: float, n: int = 300, split: Any = "train") -> list[Task]:
    return generate([name], difficulty, n, seed=3, split=split)


def fields(phrase: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(phrase) if name}


@pytest.mark.parametrize("name", ALL_KINDS)
def test_answers_are_right_by_another_method(name: str) -> None:
    for difficulty in LEVELS:
        for task in draw(name, difficulty, 40):
            assert Fraction(task.answer) == ORACLES[name](task.meta["params"]), task


@pytest.mark.parametrize("name", ALL_KINDS)
def test_each_phrase_tells_all_that_the_answer_needs(name: str) -> None:
    for task in draw(name, 0.5, 400):
        told = TOLD[name].get(task.meta["params"].get("form", ""), TOLD[name].get("", ""))
        seen = fields(task.meta["phrase"])
        assert any(set(one.split()) <= seen for one in told.split("|")), task.meta["phrase"]
    spent = [t for t in draw("savings", 1.0) if t.meta["params"]["b"]]
    assert all("b" in fields(t.meta["phrase"]) for t in spent)
    some = [t for t in draw("factorial", 1.0) if t.meta["params"]["k"] != t.meta["params"]["n"]]
    assert all("k" in fields(t.meta["phrase"]) for t in some)


@pytest.mark.parametrize("name", ALL_KINDS)
def test_every_kind_gives_300_tasks_at_every_difficulty(name: str) -> None:
    for difficulty, split in itertools.product(LEVELS, ("train", "test")):
        tasks = draw(name, difficulty, split=split)
        assert len({t.id for t in tasks}) == 300
        assert len({(str(t.meta["params"]), t.meta["phrase"]) for t in tasks}) == 300
        assert all(t.kind == name and "{" not in t.problem and t.answer for t in tasks)
        assert all(len(t.problem) < 140 for t in tasks)  # a CPU trains on these


@pytest.mark.parametrize("name", ALL_KINDS)
def test_phrasings_are_many_and_difficulty_grows(name: str) -> None:
    easy, hard = draw(name, 0.0), draw(name, 1.0)
    assert len({t.meta["phrase"] for t in easy}) >= 8
    assert digits(hard) > 1.2 * digits(easy)


def digits(tasks: list[Task]) -> float:
    """Digits of problem and answer, on average: the size of what is computed."""
    return sum(c.isdigit() for t in tasks for c in t.problem + t.answer) / len(tasks)


def test_answers_cannot_be_guessed_in_the_head() -> None:
    tasks = generate(None, 0.3, 3000, seed=0)
    long = [t for t in tasks if len(t.answer.replace(".", "")) >= 3]
    assert len(long) > 0.8 * len(tasks)
    common = Counter(t.answer for t in tasks).most_common(1)[0][1]
    assert common < 0.02 * len(tasks)


def test_there_are_many_kinds_each_described() -> None:
    assert len(KINDS) >= 14
    assert set(ORACLES) == set(TOLD) == set(KINDS)
    assert all(k.doc.endswith(".") and "\n" not in k.doc and k.name == n for n, k in KINDS.items())


# ---- Generating: splits, seeds, requests ---------------------------------------------------


def test_train_and_test_share_no_parameters_whatever_the_seed() -> None:
    train = generate(None, 0.2, 3000, seed=1, split="train")
    test = generate(None, 0.2, 1500, seed=2, split="test")
    assert not keys(train) & keys(test)
    assert not {normalised(t.problem) for t in train} & {normalised(t.problem) for t in test}


def keys(tasks: list[Task]) -> set[str]:
    return {f"{t.kind} {t.meta['params']}" for t in tasks}


@given(a=st.integers(1, 10**6), b=st.integers(1, 10**6))
def test_the_side_ignores_the_order_of_the_numbers(a: int, b: int) -> None:
    assert side("arithmetic", {"a": a, "b": b}) == side("arithmetic", {"a": b, "b": a})


def test_the_side_is_fixed_for_all_time_and_a_fifth_is_held_out() -> None:
    assert [side("power", {"a": a, "b": 2}) for a in range(12)] == SIDES
    share = sum(side("power", {"a": a, "b": 2}) == "test" for a in range(5000)) / 5000
    assert 0.17 < share < 0.23


SIDES = ["test" if a in (6, 9) else "train" for a in range(12)]


def test_another_process_generates_the_same_tasks() -> None:
    code = (
        "import hashlib; from torl.tasks import generate;"
        "print(hashlib.sha256(repr(generate(None, 0.4, 300, 7)).encode()).hexdigest())"
    )
    env = os.environ | {"PYTHONHASHSEED": "12345"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    here = hashlib.sha256(repr(generate(None, 0.4, 300, 7)).encode()).hexdigest()
    assert out.stdout.strip() == here


@settings(deadline=None, max_examples=15)
@given(
    kinds=st.lists(st.sampled_from(ALL_KINDS), min_size=1, max_size=4, unique=True),
    difficulty=st.floats(0, 1),
    n=st.integers(1, 40),
    seed=st.integers(-5, 5),
    split=st.sampled_from(["train", "test"]),
)
def test_generate_is_balanced_and_continues(
    kinds: list[str], difficulty: float, n: int, seed: int, split: Any
) -> None:
    tasks = generate(kinds, difficulty, n, seed, split)
    assert tasks == generate(kinds, difficulty, n + 9, seed, split)[:n]
    counts = Counter(t.kind for t in tasks)
    assert max(counts.values()) - min(counts[k] for k in kinds) <= 1
    assert all(side(t.kind, t.meta["params"]) == split for t in tasks)
    assert tasks[0].id == f"{kinds[0]}/{split}/0"
    assert json.loads(json.dumps(tasks[0].meta)) == tasks[0].meta


def test_other_seeds_give_other_tasks() -> None:
    assert not keys(generate(["basket"], 0.5, 50, 0)) & keys(generate(["basket"], 0.5, 50, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["aritmetic"], 0.3, 5, 0, "train"), "no kind 'aritmetic'. Did you mean arithmetic?"),
        (([], 0.3, 5, 0, "train"), "tasks.kinds is empty"),
        ((None, 1.5, 5, 0, "train"), "difficulty 1.5 is not between 0"),
        ((None, 0.5, 0, 0, "train"), "ask for at least 1"),
        ((None, 0.5, 1, 0, "dev"), "split 'dev' is neither"),
        ((["power"], 0.0, 50000, 0, "train"), "kind power has only .* lower tasks.size"),
    ],
)
def test_impossible_requests_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate(*arguments)


def test_a_kind_is_one_decorated_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "KINDS", {})

    def twice(dice: Dice) -> Problem:
        """Twice a number."""
        a = dice.number(20, 5000)
        return Problem({"a": a}, str(2 * a), ("What is twice {a}?", "Double {a}."))

    kind(twice)
    assert base.KINDS["twice"].doc == "Twice a number."
    with pytest.raises(Bug, match="a name of its own"):
        kind(twice)


@given(st.integers(-(10**9), 10**9))
def test_exact_writes_short_decimals(thousandths: int) -> None:
    value = Fraction(thousandths, 1000)
    assert Fraction(exact(value)) == value
    assert exact(Fraction(25, 2)) == "12.5"
    with pytest.raises(Bug, match="short decimal"):
        exact(Fraction(1, 3))


def test_words_differ_within_a_problem() -> None:
    words = draw_words(base.random.Random(0))
    assert words["name"] != words["other"]
    assert words["items"] != words["things"]
