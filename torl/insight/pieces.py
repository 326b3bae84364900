"""Who wrote what in a trajectory: the one reading that metrics, terminal and report share."""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from torl.rewards.answers import last_box
from torl.rollout.protocol import Segment, invented_outputs, segments
from torl.types import Trajectory, Turn

Kind = Literal["prose", "code", "marker", "observation", "answer", "invented"]


class Piece(NamedTuple):
    """A stretch of the episode. All but "observation" was written by the policy.

    "code" is a fenced block with its fences, "marker" the opening of an output block,
    "answer" the box outside code and observations that the reward reads, "invented" an output block's
    content that the policy wrote itself.
    """

    kind: Kind
    text: str


def pieces(trajectory: Trajectory) -> list[Piece]:
    """The episode after its prompt, in order; the texts joined give ``trajectory.text``."""
    found: list[Piece] = []
    for turn in trajectory.turns:
        for segment in segments(turn.text):
            found += _pieces_of(turn, segment)
        if turn.observation:
            found.append(Piece("observation", turn.observation))
    return _with_answer(found)


def final_box(text: str) -> tuple[int, int] | None:
    """The span of the box in a text that the reward would read."""
    content = last_box(text)
    if content is None:
        return None
    boxes = re.finditer(r"\\(?:boxed|fbox)\s*\{" + re.escape(content) + r"\}", text)
    return [box.span() for box in boxes][-1]


def _pieces_of(turn: Turn, segment: Segment) -> Iterator[Piece]:
    text = turn.text[segment.start : segment.end]
    if segment.kind != "output":
        yield Piece(segment.kind, text)
        return
    spans = invented_outputs(turn.text, answered=bool(turn.observation))
    starts = [start for start, _ in spans if segment.start <= start < segment.end]
    split = starts[0] - segment.start if starts else len(text)
    yield Piece("marker", text[:split])
    if starts:
        yield Piece("invented", text[split:])


def _with_answer(found: list[Piece]) -> list[Piece]:
    """Cuts the last box out of the last prose that has one."""
    for index in range(len(found) - 1, -1, -1):
        kind, text = found[index]
        span = final_box(text) if kind == "prose" else None
        if span is None:
            continue
        start, end = span
        cut = [Piece("prose", text[:start]), Piece("answer", text[start:end]), Piece("prose", text[end:])]
        return found[:index] + [piece for piece in cut if piece.text] + found[index + 1 :]
    return found
