"""Whether a text takes up what a tool answered: the same numbers, or the same words."""

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import NamedTuple

_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")
_WORD = re.compile(r"[^\W\d_]{2,}")
_MOST_ROUNDED, _MOST_PLACES = Decimal(10) ** 12, 12  # what Decimal rounds exactly
_VERDICTS = {"true", "false", "none"}


class Shown(NamedTuple):
    """A number's size, sign left out, and the decimal places that it was written with."""

    value: Decimal
    places: int


def numbers(text: str) -> list[Shown]:
    """The numbers of a text: ``1,234.50`` is (1234.50, 2 places). A sign may be an operator, so it is
    left out; digits within a word (``x2``) are part of the word."""
    found = []
    for match in _NUMBER.finditer(text):
        value = Decimal(match[0].replace(",", ""))
        exponent = value.as_tuple().exponent
        found.append(Shown(value, max(0, -exponent) if isinstance(exponent, int) else 0))
    return found


def any_said(exact: Iterable[Shown], said: Iterable[Shown]) -> bool:
    """Whether one of the ``exact`` numbers is among those ``said``: as it is, or rounded to the places that
    were said, or so as a percentage (0.125 and 12.5). Nothing is said by rounding to 0."""
    by_places: dict[int, set[Decimal]] = {}
    for number in said:
        by_places.setdefault(number.places, set()).add(number.value)
    everything = set().union(*by_places.values())
    return any(
        number.value in everything or _rounded_among(number.value, by_places) for number in set(exact)
    )


def _rounded_among(value: Decimal, by_places: dict[int, set[Decimal]]) -> bool:
    if value >= _MOST_ROUNDED:
        return False
    candidates = (
        (round(value * scale, places), said)
        for places, said in by_places.items()
        if places <= _MOST_PLACES
        for scale in (1, 100)
    )
    return any(rounded and rounded in said for rounded, said in candidates)


def taken_up(observation: str, later: str) -> bool:
    """Whether ``later`` takes up anything of an observation: one of its numbers (also rounded, or as a
    percentage), or, of an observation without numbers, one of its words.

    An observation that says no more than True, False or None counts as taken up: a conclusion from
    it need not repeat it. An empty one does not: it said nothing.
    """
    values = numbers(observation)
    if values:
        return any_said(values, numbers(later))
    words = {word.casefold() for word in _WORD.findall(observation)}
    if not words:
        return bool(observation.strip()) and observation.strip() in later
    return words <= _VERDICTS or bool(words & {word.casefold() for word in _WORD.findall(later)})
