r"""The policy's final answer: the last ``\boxed{...}`` of its own prose.

The paper's reference code reads the last box of the whole response, tool output and code
included, so a program that prints a box overrides the answer. Here a box counts only where
the policy speaks for itself: outside code, outside output blocks, outside observations.
"""

import re
from typing import NamedTuple

from torl.rollout.protocol import code_blocks, segments
from torl.types import Trajectory

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def final_answer(trajectory: Trajectory) -> str | None:
    r"""The content of the last box of the policy's prose, stripped; None without one.

    A box that is not closed within its stretch of prose (cut off, or spanning a turn or a
    code block) does not count. An empty last box is no answer.
    """
    for text in reversed(prose(trajectory)):
        box = last_box(text)
        if box is not None:
            return box.strip() or None
    return None


def last_box(text: str) -> str | None:
    r"""The content of the last closed box: ``last_box(r"\boxed{\frac{1}{2}}")`` is ``\frac{1}{2}``."""
    found = boxes(text)
    return text[found[-1].start : found[-1].end] if found else None


class Box(NamedTuple):
    """A closed box: ``text[start:end]`` is its content, and ``behind`` where the text goes on."""

    start: int
    end: int

    @property
    def behind(self) -> int:
        return self.end + 1


def boxes(text: str) -> list[Box]:
    """The closed boxes in order. A box within a box belongs to the outer one."""
    found: list[Box] = []
    match = _BOX.search(text)
    while match is not None:
        end = _closing_brace(text, match.end())
        if end is not None:
            found.append(Box(match.end(), end))
        match = _BOX.search(text, match.end() if end is None else end)
    return found


def prose(trajectory: Trajectory) -> list[str]:
    """The stretches of the policy's own prose, in order: no code, no output blocks, no observations."""
    parts = [segment for turn in trajectory.turns for segment in segments(turn.text)]
    return [segment.body for segment in parts if segment.kind == "prose"]


def last_code(trajectory: Trajectory) -> str | None:
    """The policy's last block of Python (its fence says so, or says nothing), run or not."""
    for turn in reversed(trajectory.turns):
        for block in reversed(code_blocks(turn.text)):
            if block.info in ("", "python", "py", "python3"):
                return block.body
    return None


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
