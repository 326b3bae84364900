r"""The policy's final answer: the last ``\boxed{...}`` of its own prose.

The paper's reference code reads the last box of the whole response, tool output and code
included, so a program that prints a box overrides the answer. Here a box counts only where
the policy speaks for itself: outside code, outside output blocks, outside observations.
"""

import re

from torl.rollout.protocol import segments
from torl.types import Trajectory

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def final_answer(trajectory: Trajectory) -> str | None:
    r"""The content of the last box of the policy's prose, stripped; None without one.

    A box that is not closed within its stretch of prose (cut off, or spanning a turn or a
    code block) does not count. An empty last box is no answer.
    """
    for turn in reversed(trajectory.turns):
        for segment in reversed(segments(turn.text)):
            box = last_box(segment.body) if segment.kind == "prose" else None
            if box is not None:
                return box.strip() or None
    return None


def last_box(text: str) -> str | None:
    r"""The content of the last closed box: ``last_box(r"\boxed{\frac{1}{2}}")`` is ``\frac{1}{2}``.

    A box within a box belongs to the outer one.
    """
    found, match = None, _BOX.search(text)
    while match is not None:
        end = _closing_brace(text, match.end())
        if end is not None:
            found = text[match.end() : end]
        match = _BOX.search(text, match.end() if end is None else end)
    return found


def _closing_brace(text: str, start: int) -> int | None:
    r"""Where the brace opened just before ``start`` closes. ``\{`` and ``\}`` are text."""
    depth, i = 1, start
    while i < len(text):
        if text[i] == "\\":
            i += 1  # whatever is escaped is not a brace
        elif text[i] == "{":
            depth += 1
        elif text[i] == "}":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    return None
