"""How the policy asks for a call, and how the answer is written into its context.

The paper's fenced form (arXiv 2503.23383, section 2): the policy writes a code block, then
opens an output block; there sampling stops, the latest block of this turn runs, and the
result is put in, with a closing fence::

    ```python
    print(12 * 31)
    ```
    ```output          <- the marker: sampled by the policy, trained
    372                <- the observation: appended by us, never trained
    ```
"""

import re
from dataclasses import dataclass
from typing import Literal

from torl.types import ToolCall, ToolResult

MARKER = "```output"
FENCE = "```"

_FENCE_LINE = re.compile(r"^[ \t]*```[ \t]*([\w.+-]*)", re.MULTILINE)


@dataclass(frozen=True)
class Segment:
    """A stretch ``text[start:end]`` of what the policy wrote in one turn.

    ``kind`` is "prose", "code" (a fenced block with its fences) or "output" (a fenced block
    whose info string is output). ``body`` is what stands between the fences; ``closed`` is
    False for a block that the turn ends in.
    """

    kind: Literal["prose", "code", "output"]
    start: int
    end: int
    body: str
    info: str = ""
    closed: bool = True


def segments(text: str) -> list[Segment]:
    """Splits one turn's text into prose, code and output blocks, in order, without gaps.

    A line that begins with three backticks opens a block, the next such line closes it; but
    a line that opens an output block closes whatever was open first, since the policy may
    forget the closing fence.
    """
    out: list[Segment] = []
    position = 0  # up to here the text is in ``out``
    opening: re.Match[str] | None = None
    for match in _FENCE_LINE.finditer(text):
        info = match[1].lower()
        if opening is None:
            if match.start() > position:
                out.append(Segment("prose", position, match.start(), text[position : match.start()]))
            opening = match
        elif info == "output":  # the block before it was left open
            out.append(_block(text, opening, match.start(), match.start(), closed=False))
            opening = match
        else:
            end = match.end() if match[1] == "" else match.start()
            out.append(_block(text, opening, match.start(), end, closed=match[1] == ""))
            opening = None if match[1] == "" else match
        position = match.end() if opening is None else opening.start()
    if opening is not None:
        out.append(_block(text, opening, len(text), len(text), closed=False))
    elif position < len(text):
        out.append(Segment("prose", position, len(text), text[position:]))
    return out


def _block(text: str, opening: re.Match[str], body_end: int, end: int, closed: bool) -> Segment:
    newline = text.find("\n", opening.end(), body_end)
    body = text[newline + 1 : body_end] if newline >= 0 else ""
    info = opening[1].lower()
    kind: Literal["code", "output"] = "output" if info == "output" else "code"
    return Segment(kind, opening.start(), end, body, info, closed)


def code_blocks(text: str) -> list[Segment]:
    """The code blocks of one turn, in order."""
    return [s for s in segments(text) if s.kind == "code"]


def requested_call(text: str, tools: list[str]) -> ToolCall | ToolResult:
    """The call that a turn ending in the marker asks for: its latest code block.

    A block without an info string goes to the only tool, when there is one. Returns a
    ToolResult with status "malformed", for the policy to read, when there is nothing to run.
    """
    blocks = code_blocks(text)
    if not blocks:
        return _malformed(f"Error: no code block before the output block. Write one fenced as {tools[0]}.")
    block = blocks[-1]
    name = block.info or (tools[0] if len(tools) == 1 else "")
    name = {"py": "python", "python3": "python"}.get(name, name)
    if name not in tools:
        return _malformed(f"Error: no tool named {name!r}. Tools: {', '.join(tools)}.")
    return ToolCall(name, block.body)


def _malformed(text: str) -> ToolResult:
    return ToolResult(text, status="malformed", executed=False)


def no_calls_left(max_tool_calls: int) -> ToolResult:
    """What the policy reads when it asks for more than C calls."""
    text = f"Error: no tool calls left ({max_tool_calls} allowed). Give the final answer."
    return ToolResult(text, status="no_calls_left", executed=False)


def observation_text(turn_text: str, shown: str) -> str:
    """The text put behind a turn that ended in the marker, so that the block is well formed.

    The marker may have ended inside a token, so some of the line behind it may already stand.
    Backticks at a line's start would close the block: they get a space before them.
    """
    after = turn_text[turn_text.rfind(MARKER) + len(MARKER) :]
    lead = "" if after.endswith("\n") else "\n"
    body = re.sub(r"^```", " ```", shown, flags=re.MULTILINE)
    return f"{lead}{body}{'' if body.endswith(chr(10)) else chr(10)}{FENCE}\n"


def invented_outputs(text: str, answered: bool) -> list[tuple[int, int]]:
    """Character spans of output blocks that the policy wrote itself in one turn.

    ``answered`` says that the turn's last block is the marker that the environment answered:
    that one is a request, not an invention. A span starts behind the marker's line.
    """
    blocks = [s for s in segments(text) if s.kind == "output"]
    if answered and blocks:
        blocks = blocks[:-1]
    spans = []
    for block in blocks:
        start = text.find("\n", block.start, block.end)
        if start >= 0 and text[start + 1 : block.end].strip():
            spans.append((start + 1, block.end))
    return spans
