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

_FENCE_LINE = re.compile(r"^([ \t]*`{3,})[ \t]*([\w.+-]*)([^\n]*)", re.MULTILINE)


@dataclass(frozen=True)
class Segment:
    """A stretch ``text[start:end]`` of what the policy wrote in one turn.

    ``kind`` is "prose", "code" (a fenced block with its fences) or "output" (a fenced block
    whose info string begins with output, as the marker does). ``body`` is what stands between
    the fences, less the indentation of the opening one; ``closed`` is False for a block that
    has no closing fence.
    """

    kind: Literal["prose", "code", "output"]
    start: int
    end: int
    body: str
    info: str = ""
    closed: bool = True


def segments(text: str) -> list[Segment]:
    """Splits one turn's text into prose, code and output blocks, in order, without gaps.

    A line that begins with three backticks opens a block, and the next such line closes it:
    also one inside a string of the code, which is not looked into. But

    - a line that goes on with more backticks (```` ```x = 1``` ````) is code within prose;
    - within a block, a line that opens an output block, or has nothing but a language behind
      its backticks, opens the next one: the policy forgot to close the first.
    """
    out: list[Segment] = []
    position = 0  # up to here the text is in ``out``
    opening: re.Match[str] | None = None
    for fence in _FENCE_LINE.finditer(text):
        info, rest = fence[2].lower(), fence[3].strip()
        if opening is None:
            if "`" in rest:
                continue
            if fence.start() > position:
                out.append(_prose(text, position, fence.start()))
            opening, position = fence, fence.start()
        elif info.startswith("output") or (info and not rest):
            out.append(_block(text, opening, fence.start(), fence.start(), closed=False))
            opening, position = fence, fence.start()
        else:
            out.append(_block(text, opening, fence.start(), fence.end(1), closed=True))
            opening, position = None, fence.end(1)
    if opening is not None:
        out.append(_block(text, opening, len(text), len(text), closed=False))
    elif position < len(text):
        out.append(_prose(text, position, len(text)))
    return out


def _prose(text: str, start: int, end: int) -> Segment:
    return Segment("prose", start, end, text[start:end])


def _block(text: str, opening: re.Match[str], body_end: int, end: int, closed: bool) -> Segment:
    body = text[opening.end() + 1 : body_end]
    indent = len(opening[1]) - len(opening[1].lstrip())
    if indent:
        body = re.sub(rf"^[ \t]{{1,{indent}}}", "", body, flags=re.MULTILINE)
    info = opening[2].lower()
    kind: Literal["code", "output"] = "output" if info.startswith("output") else "code"
    return Segment(kind, opening.start(), end, body, info, closed)


def code_blocks(text: str) -> list[Segment]:
    """The code blocks of one turn, in order."""
    return [s for s in segments(text) if s.kind == "code"]


def requested_call(text: str, tools: list[str]) -> ToolCall | ToolResult:
    """The call that a turn ending in the marker asks for: its latest code block.

    A block without an info string goes to the only tool, when there is one. Returns a
    ToolResult with status "malformed", for the policy to read, when there is nothing to run.
    """
    blocks = code_blocks(text.partition(MARKER)[0])
    if not blocks:
        return _malformed(f"Error: no code block before the output block. Write one fenced as {tools[0]}.")
    block = blocks[-1]
    asked = block.info or (tools[0].lower() if len(tools) == 1 else "")
    asked = {"py": "python", "python3": "python"}.get(asked, asked)
    for name in tools:
        if name.lower() == asked:
            return ToolCall(name, block.body)
    return _malformed(f"Error: no tool named {asked!r}. Tools: {', '.join(tools)}.")


def _malformed(text: str) -> ToolResult:
    return ToolResult(text, status="malformed", executed=False)


def no_calls_left(max_tool_calls: int, stop: bool = False) -> ToolResult:
    """What the policy reads when it asks for more than C calls; ``stop`` ends its episode."""
    text = f"Error: no tool calls left ({max_tool_calls} allowed). Give the final answer."
    return ToolResult(text, status="no_calls_left", executed=False, stop=stop)


def observation_text(turn_text: str, shown: str) -> str:
    """The text put behind a turn that ended in the marker, so that the block is well formed.

    The marker may have ended inside a token, so something may already stand behind it; and it
    may stand within a line, or be closed again: then the observation opens its own block.
    Backticks at a line's start would close the block: they get a backslash before them.
    """
    lead = "" if turn_text.endswith("\n") else "\n"
    last = segments(turn_text)[-1:]
    if not (last and _asks(turn_text, last[0]) and not last[0].closed):
        lead += f"{MARKER}\n"
    body = re.sub(r"^([ \t]*)(?=```)", r"\1\\", shown, flags=re.MULTILINE)
    return f"{lead}{body}{'' if body.endswith(chr(10)) else chr(10)}{FENCE}\n"


def invented_outputs(text: str, answered: bool) -> list[tuple[int, int]]:
    """Character spans of output blocks that the policy wrote itself in one turn.

    ``answered`` says that the environment answered the turn's marker: the block it opens is a
    request, not an invention. A span starts behind the marker's line.
    """
    spans = []
    for block in segments(text):
        if block.kind != "output" or (answered and _asks(text, block)):
            continue
        start = text.find("\n", block.start, block.end)
        if start >= 0 and text[start + 1 : block.end].strip():
            spans.append((start + 1, block.end))
    return spans


def _asks(text: str, block: Segment) -> bool:
    """Whether the marker at which the turn ended is what opens this block."""
    at = text.find(MARKER)
    return block.kind == "output" and block.start <= at and not text[block.start : at].strip(" \t`")
