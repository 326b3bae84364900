r"""Numbers as people write them, compared within a tolerance.

Read are whole numbers and decimals with a sign (``-3``, ``.5``, ``12.50``), with thousands
(``1,234,567``, ``1{,}234``), fractions (``3/4``, ``\frac{3}{4}``, ``2 1/2``, ``1.5/2``), scientific
notation (``1e-5``, ``1.2 \times 10^{-3}``, ``1.2*10^3``, ``10^6``) and percent (``12%`` is ``0.12``, not
``12``). Dollars around a formula, ``\left``, thin spaces and the like do not matter. Anything more is no
number: a unit (``5 cm``, ``$5``) is not guessed away.
"""

import re
from fractions import Fraction

from torl.rewards.normalise import MAX_CHARS
from torl.rewards.plain import plain_number

_FORMULA = re.compile(r"\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]", re.DOTALL)
_NOISE = re.compile(r"\\[,;:! ]|~|\\(?:displaystyle|left|right)(?![a-zA-Z])\.?")
_POWER = re.compile(
    r"(?:(.+?)\s*(?:\\times|\\cdot|[×*·x])\s*)?(-?)10\s*(?:\^|\*\*)\s*(?:\{\s*([-+]?\d{1,3})\s*\}|\(?([-+]?\d{1,3})\)?)"
)
_QUOTIENT = re.compile(r"([-+]?)(?:\\[dtc]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}|([^/]+)/([^/]+))")


def number(text: str) -> Fraction | None:
    """The exact value of a text that is one number; None for any other text."""
    text = text.strip()
    if len(text) > MAX_CHARS:
        return None
    formula = _FORMULA.fullmatch(text)
    if formula is not None:
        text = next(group for group in formula.groups() if group is not None)
    text = _NOISE.sub("", text.replace("{,}", ",").replace("\\,", "")).replace("−", "-").strip()
    body = re.sub(r"\s*\\?%$", "", text)
    value = _value(body)
    return value if value is None or body == text else value / 100


def close(answer: Fraction, reference: Fraction, *, rel_tol: float, abs_tol: float) -> bool:
    """``|answer - reference| <= max(rel_tol * |reference|, abs_tol)``, in exact arithmetic."""
    return abs(answer - reference) <= max(Fraction(rel_tol) * abs(reference), Fraction(abs_tol))


def _value(text: str) -> Fraction | None:
    found = plain_number(text) if not text.endswith("%") else None
    if found is not None:
        return found.value
    power = _POWER.fullmatch(text)
    if power is not None:
        factor = _decimal(power[1]) if power[1] else Fraction(-1 if power[2] else 1)
        if factor is None or (power[1] and power[2]):
            return None
        return factor * Fraction(10) ** int(power[3] or power[4])
    quotient = _QUOTIENT.fullmatch(text)
    if quotient is not None:
        top, bottom = _decimal(quotient[2] or quotient[4]), _decimal(quotient[3] or quotient[5])
        if top is not None and bottom:
            return -(top / bottom) if quotient[1] == "-" else top / bottom
    return None


def _decimal(text: str) -> Fraction | None:
    """A number without fraction bar or percent sign."""
    text = text.strip()
    if "/" in text or "%" in text or "frac" in text:
        return None
    found = plain_number(text)
    return None if found is None else found.value
