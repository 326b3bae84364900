r"""The verdicts that need no checker: exact, and in microseconds.

- Equal strings, once both are in one spelling (normalise.py, units.py).
- Plain numbers (``1,234``, ``12.50``, ``p/q``, ``\frac{p}{q}``, ``2 1/2``, ``1e-5``,
  ``0.\overline{3}``), as exact fractions. ``0.333`` is not ``1/3``; but a decimal of 6 or more
  places is taken for a printed float, and equals what rounds to it: ``0.333333`` is ``1/3``.
- Percent: ``12%`` is ``0.12``; it is ``12`` too, since the question may say "percent". Below one
  that would be ambiguous, so ``0.5%`` is not ``0.5``.
- ``52_8`` equals ``52_8`` and a bare ``52``; neither ``52_9`` nor its decimal value.
- Words (``\text{Monday}``, ``no solution``, choice letters), whatever their case.
- Lists in different brackets: ``(1,2)``, ``[1,2]`` and ``\{1,2\}`` are different things.
- Braces that do not match, or more than 1000 characters: wrong, unless it is the reference
  itself.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from torl.rewards.normalise import MAX_CHARS
from torl.rewards.units import TEXT

PRINTED_PLACES = 6  # from this many decimal places on, a decimal may be a rounded value

_INTEGER = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+"
_DECIMAL = re.compile(rf"([-+]?)(?:({_INTEGER})(?:\.(\d*))?|\.(\d+))(?:[eE]([-+]?\d{{1,3}}))?")
_REPEATING = re.compile(r"([-+]?)(\d+)?\.(\d*)\\overline\{(\d+)\}")
_RATIO = re.compile(r"([-+]?)(?:(\d+) )?(?:\\frac\{([-+]?\d+)\}\{(\d+)\}|(\d+)/(\d+))")
_IN_BASE = re.compile(r"(\d[\dA-Fa-f]*)(?:_\{?(?:\\text\{)?(\w+)\}{0,2})?")
_WORDS = re.compile(r"[A-Za-z][A-Za-z .'’-]*")
_CHOICE = re.compile(r"\(([A-Za-z])\)")
_OPENING, _CLOSING = "([{", ")]}"


def decide_plain(answer: str, reference: str) -> bool | None:
    """The verdict on two normalised strings; None when it takes the checker."""
    if not answer or not reference:
        return False
    if answer == reference:
        return True
    if max(len(answer), len(reference)) > MAX_CHARS:
        return False
    for decide in (_malformed, _equal_numbers, _equal_in_base, _equal_words, _equal_brackets):
        verdict = decide(answer, reference)
        if verdict is not None:
            return verdict
    return None


def _malformed(answer: str, reference: str) -> bool | None:
    """Braces that do not match cannot be parsed, and make the parser slow to find out."""
    for text in (answer, reference):
        depth = 0
        for brace in re.findall(r"\\.|[{}]", text):
            depth += {"{": 1, "}": -1}.get(brace, 0)
            if depth < 0:
                return False
        if depth:
            return False
    return None


@dataclass(frozen=True)
class Number:
    """A plain number: its value, how many decimal places it shows, whether a % follows."""

    value: Fraction
    places: int = 0
    percent: bool = False

    def rounds_from(self, exact: Fraction) -> bool:
        """True when this is a decimal that was printed, and it is what ``exact`` rounds to.

        A float's own error is allowed for: 0.30000000000000004 is 0.3.
        """
        if self.places < PRINTED_PLACES or self.value == 0:
            return False
        half_a_unit = Fraction(1, 2 * 10**self.places)
        return abs(self.value - exact) <= max(half_a_unit, abs(exact) / 10**12)

    def equals(self, other: "Number") -> bool:
        """Equal in value, the percent signs apart."""
        same = self.value == other.value
        return same or self.rounds_from(other.value) or other.rounds_from(self.value)

    def as_share(self) -> "Number":
        """12% as 0.12."""
        return Number(self.value / 100, self.places + 2) if self.percent else self


def plain_number(text: str) -> Number | None:
    """The number that a normalised string is, or None when it is more than that."""
    body = text.removesuffix("%")
    if match := _DECIMAL.fullmatch(body):
        sign, integer, decimals, bare, exponent = match.groups()
        digits, power = decimals or bare or "", int(exponent or 0)
        value = Fraction(f"{sign}{re.sub('[ ,]', '', integer or '0')}.{digits or '0'}")
        return Number(value * Fraction(10) ** power, len(digits) - power, body != text)
    if match := _RATIO.fullmatch(body):
        sign, whole, top, bottom = match[1], match[2], match[3] or match[5], match[4] or match[6]
        if int(bottom) == 0:
            return None
        value = int(whole or 0) + Fraction(int(top), int(bottom))
        return Number(-value if sign == "-" else value, 0, body != text)
    if match := _REPEATING.fullmatch(body):
        sign, integer, fixed, repeated = match.groups()
        shift = 10 ** len(fixed)
        value = Fraction(f"{integer or 0}.{fixed or 0}")
        value += Fraction(int(repeated), shift * (10 ** len(repeated) - 1))
        return Number(-value if sign == "-" else value, 0, body != text)
    return None


def _equal_numbers(answer: str, reference: str) -> bool | None:
    a, b = plain_number(answer), plain_number(reference)
    if a is None or b is None:
        return None
    if a.as_share().equals(b.as_share()):
        return True
    return a.percent != b.percent and min(abs(a.value), abs(b.value)) >= 1 and a.equals(b)


def _equal_in_base(answer: str, reference: str) -> bool | None:
    a, b = _IN_BASE.fullmatch(answer), _IN_BASE.fullmatch(reference)
    if a is None or b is None or not (a[2] or b[2]):
        return None
    same_base = not a[2] or not b[2] or a[2].lower() == b[2].lower()
    return same_base and a[1].lower() == b[1].lower()


def _equal_words(answer: str, reference: str) -> bool | None:
    """Words are compared as words: to the checker "Monday" is a product of six symbols."""
    a, b = _without_text(answer), _without_text(reference)
    if not (_WORDS.fullmatch(a) and _WORDS.fullmatch(b)):
        return None
    marked = (a, b) != (answer, reference)
    if not marked and max(len(a), len(b)) < 4:  # xy and yx are algebra
        return None
    return _letters(a) == _letters(b)


def _without_text(text: str) -> str:
    return _CHOICE.sub(r"\1", re.sub(TEXT, r" \1 ", text).strip())


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


def _equal_brackets(answer: str, reference: str) -> bool | None:
    a, b = _brackets(answer), _brackets(reference)
    return False if a and b and a != b else None


def _brackets(text: str) -> str:
    r"""The brackets around a whole list, e.g. "()" for ``(1,2)`` and "{}" for ``\{1,2\}``."""
    body = text.replace(r"\{", "{").replace(r"\}", "}")
    if len(body) < 2 or body[0] not in _OPENING or body[-1] not in _CLOSING or "," not in body:
        return ""
    depth = 0
    for character in body[:-1]:
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0:  # closed before the end: (1,2) \cup (3,4)
            return ""
    return body[0] + body[-1]
