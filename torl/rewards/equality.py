"""math-verify, used on whole expressions. Runs in the verifier's worker only."""

from dataclasses import replace
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Eq, nan, simplify, solve, zoo  # type: ignore[import-untyped]

# Units are off: math-verify takes the last letter of 2t or 3c for one and drops it.
_WHOLE = LatexExtractionConfig(
    boxed_match_priority=0,
    normalization_config=replace(LatexExtractionConfig().normalization_config, units=False, boxed="last"),
)


def equal(answer: str, reference: str) -> bool:
    """True when both parse as a whole and math-verify holds them equal.

    What does not parse as a whole equals nothing. A percent sign may be missing on one side.
    Raises what math-verify raises.
    """
    bare, bare_reference = answer.removesuffix("%"), reference.removesuffix("%")
    if (bare == answer) == (bare_reference == reference):
        return _equal(bare, bare_reference)
    shares = [
        t if b == t else rf"\frac{{{b}}}{{100}}" for b, t in ((bare, answer), (bare_reference, reference))
    ]
    return _equal(bare, bare_reference) or _equal(*shares)


def _equal(answer: str, reference: str) -> bool:
    gold, given = _parse(reference), _parse(answer)
    if any(side is None or side in (nan, zoo) for side in (gold, given)):  # 0/0 equals nothing
        return False
    # Sets may be given as relations, 0 < x < 1, on either side.
    same = verify(gold, given, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True)
    return bool(same) and _near(gold, given) and not _unsolvable(gold, given)


def _parse(text: str) -> Any | None:
    r"""The sympy object of the whole text. Bare LaTeX, without the box around it, would fall
    to number extraction: ``2\sqrt{3}`` would be 2."""
    found = parse(
        f"\\boxed{{{text}}}",
        [_WHOLE],
        fallback_mode="no_fallback",
        extraction_mode="first_match",  # never a part of it when the whole fails
        parsing_timeout=None,
    )
    return found[0] if found else None


def _near(a: Any, b: Any) -> bool:
    """math-verify compares with an absolute tolerance, so all tiny numbers are one to it."""
    if not (getattr(a, "is_number", False) and getattr(b, "is_number", False)):
        return True
    try:
        x, y = complex(a.doit()), complex(b.doit())
    except (TypeError, ValueError, OverflowError):
        return True
    return abs(x - y) <= 1e-6 * max(abs(x), abs(y))


def _unsolvable(a: Any, b: Any) -> bool:
    """To math-verify all equations without a solution are one: x^2=-1 is x^2=-2."""
    if a == b or not (isinstance(a, Eq) and isinstance(b, Eq)):
        return False
    same_difference = simplify((a.lhs - a.rhs) - (b.lhs - b.rhs)) == 0
    return not same_difference and not solve(a)
