"""What each executed call of a trajectory was good for, as far as its text tells."""

import ast
import re
import warnings
from enum import StrEnum
from typing import NamedTuple

from torl.rewards.answers import boxes
from torl.rewards.mentions import taken_up
from torl.rollout.protocol import segments
from torl.tools.python import NOTHING
from torl.types import ToolCall, ToolResult, Trajectory, Turn

_SOURCE = "<a call>"
_FRAME = re.compile(r"^[ \t]*```(?:output)?[ \t]*$|^\[\.\.\. \d+ characters cut \.\.\.\]$", re.MULTILINE)
_LONGEST = 20_000  # characters; a longer program is compared as text
# What a program's strings escape is no concern of ours, and no line in the log.
warnings.filterwarnings("ignore", module=re.escape(_SOURCE))


class CallKind(StrEnum):
    """The first that fits, from above."""

    AFTER_ANSWER = "after_answer"  # behind the trajectory's final answer
    REDUNDANT = "redundant"  # the same tool and the same code as an executed call before it
    UNUSED = "unused"  # passed, and nothing of its result is taken up in what the policy wrote later
    FRESH = "fresh"  # all others, failed ones too: their error is what the policy learns from


class Call(NamedTuple):
    """An executed call: of which turn, what it was, what came back."""

    turn: int
    kind: CallKind
    result: ToolResult


def calls_of(trajectory: Trajectory) -> list[Call]:
    """The executed calls in order, each with its kind. Malformed and refused requests ran nothing and
    are left out.

    - The final answer is the last box of the policy's prose (answers.py). Without one no call is
      behind it.
    - Two programs for the Python tool are the same when their syntax trees are: spaces, comments and
      quotes do not count, names do. What does not parse, and other tools' text, is compared as text
      without the space around it.
    - A result is taken up when a number of the observation that the policy read (also rounded, or as a
      percentage), or of one without numbers a word, occurs in what it wrote later, prose or code
      (mentions.py).
    """
    answered = _turn_of_the_answer(trajectory)
    seen: set[tuple[str, str]] = set()
    found: list[Call] = []
    for index, turn in enumerate(trajectory.turns):
        if turn.result is None or not turn.result.executed:
            continue
        code = _same_for_same(turn.call) if turn.call else None
        kind = CallKind.FRESH
        if answered is not None and index >= answered:
            kind = CallKind.AFTER_ANSWER
        elif code is not None and code in seen:
            kind = CallKind.REDUNDANT
        elif turn.result.ok and not _is_taken_up(trajectory, index):
            kind = CallKind.UNUSED
        if code is not None:
            seen.add(code)
        found.append(Call(index, kind, turn.result))
    return found


def _turn_of_the_answer(trajectory: Trajectory) -> int | None:
    """The turn that holds the last box. A turn ends with its call, so its box stands before it."""
    for index in reversed(range(len(trajectory.turns))):
        parts = segments(trajectory.turns[index].text)
        if any(part.kind == "prose" and boxes(part.body) for part in parts):
            return index
    return None


def _same_for_same(call: ToolCall) -> tuple[str, str]:
    text = call.text.strip()
    if call.name == "python" and len(text) <= _LONGEST:
        try:
            return call.name, ast.dump(ast.parse(text, _SOURCE))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return call.name, text
    return call.name, text


def what_was_read(turn: Turn) -> str:
    """The observation of a turn without its fences and without the note where it was cut; "" when the
    program printed nothing."""
    if turn.result is None or turn.result.text.strip() == NOTHING:
        return ""
    return _FRAME.sub("\n", turn.observation).strip()


def _is_taken_up(trajectory: Trajectory, index: int) -> bool:
    later = "\n".join(turn.text for turn in trajectory.turns[index + 1 :])
    return taken_up(what_was_read(trajectory.turns[index]), later)
