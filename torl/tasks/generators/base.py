"""What every generator shares: the dial, the words, the registry of kinds, the split.

A kind is one function with the decorator ``@kind``. It draws parameters, computes the
answer from them in plain arithmetic, and names the phrasings that ask for it::

    @kind
    def double(dice: Dice) -> Problem:
        \"\"\"Twice a number.\"\"\"
        a = dice.number(20, 5000)
        return Problem({"a": a}, str(2 * a), ("What is twice {a}?", "Double {a}."))

It never sees the seed, the split or the words: names and objects are filled in afterwards.
"""

import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeVar

from torl.errors import Bug

T = TypeVar("T")
Split = Literal["train", "test"]

TEST_SHARE = 0.2
"""Share of all parameters that belong to the held-out side."""


@dataclass(frozen=True)
class Problem:
    """Parameters, their answer, and the phrasings that ask for it.

    A phrase is a format string over ``params``, ``text`` and the words of ``draw_words``.
    """

    params: dict[str, Any]  # JSON values; all that the answer depends on
    answer: str
    phrases: Sequence[str]
    text: dict[str, str] = field(default_factory=dict)  # params as they read, e.g. "$3.75"


class Dice:
    """Random draws that know the difficulty."""

    def __init__(self, rng: random.Random, difficulty: float) -> None:
        self.rng = rng
        self.difficulty = difficulty

    def scale(self, easy: int, hard: int) -> int:
        """From ``easy`` at difficulty 0 to ``hard`` at 1, by equal factors."""
        return round(easy * math.pow(hard / easy, self.difficulty))

    def number(self, easy: int, hard: int) -> int:
        """A number between a fifth of ``scale(easy, hard)`` and all of it, at least 2."""
        top = self.scale(easy, hard)
        return self.rng.randint(max(2, top // 5), top)

    def between(self, low: int, high: int) -> int:
        """A number that does not depend on the difficulty, both ends included."""
        return self.rng.randint(low, high)

    def steps(self, easy: int, hard: int) -> int:
        """A small count (operands, steps): ``easy`` or, as the difficulty rises, up to ``hard``."""
        return self.rng.randint(easy, round(easy + (hard - easy) * self.difficulty))

    def pick(self, options: Sequence[T]) -> T:
        return options[self.rng.randrange(len(options))]

    def likely(self, probability: float) -> bool:
        return self.rng.random() < probability


@dataclass(frozen=True)
class Kind:
    """One kind of built-in problem."""

    name: str
    doc: str  # one line
    make: Callable[[Dice], Problem]


KINDS: dict[str, Kind] = {}
"""All kinds by name, in the order of their definition."""


def kind(make: Callable[[Dice], Problem]) -> Callable[[Dice], Problem]:
    """Registers a function as the kind of its name; its docstring's first line describes it."""
    name, doc = make.__name__, (make.__doc__ or "").strip().split("\n")[0]
    if not doc or name in KINDS:
        raise Bug(f"kind {name}: it needs a docstring and a name of its own")
    KINDS[name] = Kind(name, doc, make)
    return make


def side(kind_name: str, params: dict[str, Any]) -> Split:
    """Which side these parameters are on: a hash of the kind and its numbers, in any order.

    The order is left out so that 12 * 31 and 31 * 12 are on one side, and the phrasing so
    that no wording of a training problem is held out.
    """
    key = json.dumps([kind_name, sorted(_leaves(params))])
    digest = hashlib.sha256(key.encode()).digest()
    return "test" if int.from_bytes(digest[:4]) < TEST_SHARE * 2**32 else "train"


def _leaves(value: Any) -> list[str]:
    """All scalars inside a parameter, as strings."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [str(value)]


def exact(value: int | Fraction) -> str:
    """A number as an answer: "372", or a decimal of at most three places, "12.5"."""
    thousandths = value * 1000
    if thousandths != int(thousandths):
        raise Bug(f"{value} is not a short decimal")
    whole, rest = divmod(abs(int(thousandths)), 1000)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}" + (f".{rest:03d}".rstrip("0") if rest else "")


def dollars(cents: int) -> str:
    """Cents as a price tag: 1200 is "$12", 375 is "$3.75"."""
    return f"${cents // 100}" + (f".{cents % 100:02d}" if cents % 100 else "")


def listing(numbers: Sequence[int]) -> str:
    """[3, 5, 8] as "3, 5 and 8"."""
    return ", ".join(str(n) for n in numbers[:-1]) + f" and {numbers[-1]}"


def multiple_of(step: int, value: int) -> int:
    """The multiple of ``step`` next to ``value``, upwards and never 0."""
    return step * max(1, math.ceil(value / step))


# fmt: off
NAMES = (
    "Ada", "Amir", "Anna", "Ben", "Carla", "Chen", "Clara", "Daniel", "Diego", "Elena", "Emma", "Eva",
    "Farah", "Felix", "Grace", "Hana", "Hugo", "Ida", "Ivan", "Jack", "Jamal", "Julia", "Kenji", "Lara",
    "Leo", "Lina", "Lucas", "Maria", "Marta", "Maya", "Mei", "Nadia", "Nina", "Noah", "Olga", "Omar",
    "Oscar", "Paul", "Priya", "Ravi", "Rosa", "Sam", "Sara", "Sofia", "Tara", "Theo", "Tom", "Vera",
    "Yusuf", "Zoe",
)

ITEMS = (
    "apples", "beads", "biscuits", "books", "bottles", "buttons", "candles", "cards", "carrots", "chairs",
    "coins", "cookies", "cups", "eggs", "erasers", "flowers", "keys", "lemons", "magnets", "marbles",
    "mugs", "muffins", "nails", "notebooks", "nuts", "onions", "oranges", "pears", "pencils", "pens",
    "plates", "plums", "postcards", "potatoes", "ribbons", "rolls", "screws", "seeds", "shells", "spoons",
    "stamps", "stickers", "tickets", "tiles", "tomatoes", "toys",
)

BOXES = (
    "bags", "baskets", "boxes", "bundles", "cartons", "crates", "drawers", "jars", "packs", "piles",
    "sacks", "shelves", "trays",
)
# fmt: on

SINGULAR = {"boxes": "box", "shelves": "shelf", "trays": "tray"}


def draw_words(rng: random.Random) -> dict[str, str]:
    """Names and objects for one problem: name, other, items, things (other items), boxes, box."""
    name, other = rng.sample(NAMES, 2)
    items, things = rng.sample(ITEMS, 2)
    boxes = rng.choice(BOXES)
    box = SINGULAR.get(boxes, boxes.removesuffix("s"))
    return {"name": name, "other": other, "items": items, "things": things, "boxes": boxes, "box": box}
