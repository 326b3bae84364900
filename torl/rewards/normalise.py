r"""One spelling for what LaTeX and people write in many: spacing, ``\left``, ``\dfrac``, ``$``,
``\frac12``, Unicode signs, thousands, degrees. Both sides of a comparison go through it."""

import re

from torl.rewards.units import TEXT, strip_unit

MAX_CHARS = 1000  # longer answers are compared as they stand; no task has such an answer

_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "°": ""}
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in "}
    | {"≈": r"\approx ", "∅": r"\emptyset "}
)
_MATH = re.compile(r"(?:\$+|\\\(|\\\[)(.*?)(?:\$+|\\\)|\\\])", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{(.*)\}", re.DOTALL)
_TEXT_WITH_DIGIT = re.compile(TEXT.replace("([^{}]*)", r"([^{}]*\d[^{}]*)"))
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\,|,\\!)\s*(?=\d{3}(?!\d))")
# The first group keeps a matrix's line break, whose second backslash is no command's.
_SPACE = re.compile(r"(\\\\)|\\(?:[,;:> ]|q?quad(?![a-zA-Z]))|~")
_NOTHING = re.compile(
    r"(\\\\)|\\!|\\?\$|[€£¥₹]|\\(?:displaystyle|left|right|[bB]igg?[lr]?)(?![a-zA-Z])\.?"
    r"|\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degrees?(?![a-zA-Z])"
)
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*percent\s*\}|\bpercent\b)")
_TIGHT = re.compile(r"\s*([-+*/=(),;:<>\[\]{}^_|])\s*")

_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_TOKEN = r"\s*(\\(?!frac|binom|sqrt)[a-zA-Z]+|[a-zA-Z0-9])"
_BARE_FIRST = re.compile(rf"(\\(?:frac|binom|sqrt(?:\[[^\]]*\])?)(?![a-zA-Z])){_TOKEN}")
_BARE_SECOND = re.compile(rf"(\\(?:frac|binom){_GROUP}){_TOKEN}")


def normalise(text: str) -> str:
    """The text in the one spelling. Never raises; texts beyond MAX_CHARS stay as they are."""
    text = text.strip()
    if len(text) > MAX_CHARS or text.isdecimal():
        return text
    text = _unwrap(text.translate(_SIGNS)).replace(r"\varnothing", r"\emptyset")
    text = _THOUSANDS.sub(",", text)
    text = _SPACE.sub(lambda m: m[1] or " ", text)
    text = _NOTHING.sub(lambda m: m[1] or "", text)
    text = _PERCENT.sub("%", text)
    text = text.strip().removeprefix(r"\approx")
    text = _TIGHT.sub(r"\1", " ".join(text.split()))
    return strip_unit(_brace(text).rstrip(" .,;"))


def _unwrap(text: str) -> str:
    """Without the dollars, the box or the ``\\text`` around the whole."""
    for pattern in (_MATH, _BOX, _MATH, _TEXT_WITH_DIGIT):
        match = pattern.fullmatch(text)
        if match is not None:
            text = match[1].strip()
    return text


def _brace(text: str) -> str:
    r"""``\frac\pi2`` and ``\sqrt3`` get braces, ``\dfrac`` becomes ``\frac``."""
    text = re.sub(r"\\[dtc](frac|binom)(?![a-zA-Z])", r"\\\1", text)
    text = _BARE_FIRST.sub(r"\1{\2}", text)
    before = ""
    while before != text:  # from the outer fractions to the inner ones
        before, text = text, _BARE_SECOND.sub(r"\1{\2}", text)
    return text
