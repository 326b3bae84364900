r"""Drops the unit behind a number: ``5\text{ cm}``, ``12 apples`` and ``3 m`` are 5, 12 and 3.

The question names the unit, so an answer is not wrong for leaving it out. Which unit it was
is not compared. math-verify's own list is not used: it takes the last letter of ``2t`` or
``3x+2d`` for a unit. Here letters that may be algebra stay.
"""

import re

TEXT = r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TEXT_UNIT = re.compile(rf"(?<=\S)\s*{TEXT}(?:\^\{{?\d\}}?)?$")
_WORD_UNIT = re.compile(r"(.*[\d)}])(\s*)([a-zA-Z][a-zA-Z ./]*)(?:\^\{?\d\}?)?$")
_UNITS = _words(
    "mm cm dm km in ft yd mi mg kg lb lbs oz ml cl dl km/h kmh mph km/hr m/s ft/s hr hrs min "
    "sec ms pm am a.m. p.m. USD Hz kHz kW kWh ohms"
)
_LETTER_UNITS = frozenset("mgshLl")
_NEVER_UNITS = _words(
    "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln exp sqrt pi mod choose "
    "factorial inf infinity and or to the plus minus times over divided more less not "
    "hundred thousand million billion trillion dozen half"
)


def strip_unit(text: str) -> str:
    """The number before the unit, or the text as it is. The text is in normalised spelling."""
    match = _TEXT_UNIT.search(text)
    if match is not None and _is_numeric(text[: match.start()]) and not _never(match[1]):
        return text[: match.start()].rstrip()
    match = _WORD_UNIT.fullmatch(text)
    if match is not None and _is_numeric(match[1]) and _is_unit(match[3].strip(), spaced=bool(match[2])):
        return match[1]
    return text


def _is_numeric(text: str) -> bool:
    without_commands = re.sub(r"\\[a-zA-Z]+", "", text)
    return any(c.isdigit() for c in text) and not any(c.isalpha() for c in without_commands)


def _is_unit(words: str, spaced: bool) -> bool:
    if _never(words):
        return False
    if words in _UNITS or (spaced and words in _LETTER_UNITS):
        return True
    return len(words.split(maxsplit=1)[0]) >= (3 if spaced else 4)


def _never(words: str) -> bool:
    return any(word in _NEVER_UNITS for word in words.lower().split())
