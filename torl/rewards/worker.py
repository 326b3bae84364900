"""The verifier's worker: reads requests as lines of JSON, answers with verdicts.

A request is a pair to compare, or a regular expression to look for: both are hostile text that may
take for ever.

    python -m torl.rewards.worker MEMORY_MB

It loads neither torch nor transformers. It has no time limit of its own but an alarm that
ends it when its parent is gone and cannot.
"""

import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_GRACE_S = 5.0  # the parent's clock decides; the alarm is for orphans
_ATOM = re.compile(r"[-+ ]*(?:(?:Integer|Float|Symbol) ?\(['\w.+-]+ ?\)|\w+) ?")


def main() -> None:
    """Serves until the standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever sympy prints must not be taken for a reply
    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(20_000)  # the parser of deep, but honest, expressions
    limit_kb = int(sys.argv[1]) * 1024
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):  # macOS may refuse; the time limit remains
        resource.setrlimit(resource.RLIMIT_AS, (limit_kb * 1024, limit_kb * 1024))

    from sympy.parsing import sympy_parser  # type: ignore[import-untyped]

    from torl.rewards.equality import equal

    sympy_parser.eval_expr = _only_atoms(sympy_parser.eval_expr)
    equal("x^2", "2x+1")  # loads and compiles all that a check needs
    # What one check may take. Beyond it, an allocation may have failed inside a handler that
    # swallowed the error, so that "not equal" means nothing.
    allowed_kb = (limit_kb - _peak_kb()) // 4
    print("{}", file=replies, flush=True)
    for line in sys.stdin:
        reply = _answer(json.loads(line), equal, allowed_kb)
        print(json.dumps(reply), file=replies, flush=True)


def _answer(request: dict[str, Any], equal: Callable[[str, str], bool], allowed_kb: int) -> dict[str, Any]:
    """The reply. "retire" asks to be replaced, since memory that was taken stays taken."""
    before_kb = _peak_kb()
    signal.setitimer(signal.ITIMER_REAL, request["timeout_s"] + _GRACE_S)
    try:
        if "pattern" in request:
            return {"found": _find_last(request["pattern"], request["texts"])}
        verdict = equal(request["answer"], request["reference"])
    except MemoryError:
        return {"fault": "out of memory", "retire": True}
    except Exception as error:  # sympy may raise anything; that decides nothing
        return {"fault": f"{type(error).__name__}: {error}"[:500]}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took_much = _peak_kb() - before_kb > allowed_kb
    if took_much and not verdict:
        return {"fault": "out of memory", "retire": True}
    return {"equal": verdict, "retire": took_much}


def _find_last(pattern: str, texts: list[str]) -> str | None:
    """The last match in the last text that has one: its first group, or all of it without groups."""
    compiled = re.compile(pattern)
    for text in reversed(texts):
        matches = list(compiled.finditer(text))
        if matches:
            found: str | None = matches[-1][1 if compiled.groups else 0]
            return found
    return None


def _only_atoms(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """sympy runs strings that reach it as Python. The parser needs that for numbers alone."""

    def guarded(code: str, *namespaces: Any) -> Any:
        if _ATOM.fullmatch(code) is None:
            raise ValueError("an answer is never run as Python")
        return evaluate(code, *namespaces)

    return guarded


def _peak_kb() -> int:
    """The largest address space that this process has had."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmPeak"))
    except OSError:  # not Linux: the largest resident size is the nearest to it
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
