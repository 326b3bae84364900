"""The fenced protocol: what is a block, what is asked for, what is put in, what was made up."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torl.rollout.protocol import (
    MARKER,
    code_blocks,
    invented_outputs,
    observation_text,
    requested_call,
    segments,
)
from torl.types import ToolCall, ToolResult

FENCES = [
    "```",
    "```output",
    "```python",
    "``` output",
    "````",
    "`",
    "\n```\n",
    "\n```python\n",
    "\n```output\n",
]
OTHERS = ["  ", "\t", "\n", "\r\n", "\n\n", "x = 1", "The answer is 5", "Output", "é", "\u2028", "\x00"]
FRAGMENTS = st.sampled_from([*FENCES, *OTHERS])
TEXTS = st.lists(FRAGMENTS | st.text(max_size=5), max_size=14).map("".join)


def kinds(text: str) -> list[tuple[str, str]]:
    return [(s.kind, s.body) for s in segments(text) if s.kind != "prose"]


@given(text=TEXTS)
@settings(max_examples=500, deadline=None)
@example(text="```")
@example(text="```output")
@example(text="a\n```python")
def test_segments_leave_no_gap(text: str) -> None:
    found = segments(text)
    assert "".join(text[s.start : s.end] for s in found) == text
    assert [s.start for s in found[1:]] == [s.end for s in found[:-1]]
    assert all(s.start < s.end for s in found)
    assert all(a.kind != "prose" or b.kind != "prose" for a, b in pairwise(found))


BLOCKS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "plain": ("a\n```python\nx\n```\nb", [("code", "x\n")]),
    "no info string": ("```\nx\n```", [("code", "x\n")]),
    "more behind the language": ("```python title=a\nx\n```\n", [("code", "x\n")]),
    "unclosed at the end": ("```python\nx", [("code", "x")]),
    "opened and nothing more": ("```python", [("code", "")]),
    "a forgotten fence before output": ("```python\nx\n```output\n5", [("code", "x\n"), ("output", "5")]),
    "a forgotten fence before code": (
        "```python\nx\n```python\ny\n```",
        [("code", "x\n"), ("code", "y\n")],
    ),
    "output forgotten to close": (
        "```output\n5\n```python\nx\n```",
        [("output", "5\n"), ("code", "x\n")],
    ),
    "prose glued to the closing fence": ("```python\nx\n```The answer is \\boxed{5}", [("code", "x\n")]),
    "end of turn glued to the closing fence": ("```python\nx\n```<|im_end|>", [("code", "x\n")]),
    "CRLF": ("```python\r\nx\r\n```\r\nb", [("code", "x\r\n")]),
    "CRLF forgotten fence": ("```python\r\nx\r\n```output\r\n", [("code", "x\r\n"), ("output", "")]),
    "indented fences": ("- a\n  ```python\n  if x:\n    y\n  ```\n", [("code", "if x:\n  y\n")]),
    "indented, body less so": ("   ```python\n x\ny\n   ```", [("code", "x\ny\n")]),
    "tab": ("\t```python\n\tx\n\t```", [("code", "x\n")]),
    "four backticks": ("````python\nx\n````\nb", [("code", "x\n")]),
    "code within a line": ("```x = 1``` and \\boxed{5}", []),
    # A fence inside a string is a fence: code is not parsed. The rest is a block of its own.
    "a fence in a string": ('```python\ns = """\n```\n"""\n', [("code", 's = """\n')]),
    "a fence in a string, in a line": ("```python\ns = '```'\n```", [("code", "s = '```'\n")]),
    "capitals": ("```Python\nx\n```\n```Output\n5\n```", [("code", "x\n"), ("output", "5\n")]),
    "a token that ends behind the marker": ("```outputs\n5", [("output", "5")]),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    text, expected = BLOCKS[name]
    assert kinds(text) == expected


def test_prose_behind_a_closing_fence_is_prose() -> None:
    text = "```python\nx\n```The answer is \\boxed{5}"
    assert [text[s.start : s.end] for s in segments(text) if s.kind == "prose"] == [
        "The answer is \\boxed{5}"
    ]


def test_closed_says_whether_there_was_a_fence() -> None:
    assert [s.closed for s in code_blocks("```\na\n```\n```python\nb\n```python\nc")] == [
        True,
        False,
        False,
    ]


REQUESTS: dict[str, tuple[str, Any]] = {
    "the latest block": ("```python\na\n```\n```python\nb\n```\n```output", "b\n"),
    "prose between": ("```python\na\n```\nThis gives ```output", "a\n"),
    "fence forgotten": ("```python\na\n```output", "a\n"),
    "an alias": ("```py\na\n```\n```output", "a\n"),
    "capitals": ("```Python3\na\n```\n```output", "a\n"),
    "no info string": ("```\na\n```\n```output", "a\n"),
    "an empty block": ("```python\n```\n```output", ""),
    "marker ends inside a token": ("```python\na\n```\n```outputs\n", "a\n"),
    "a block behind the marker, in its token": ("```python\na\n```\n```output\n```\n```python\nb", "a\n"),
    "indented": (" ```python\n a\n ```\n ```output", "a\n"),
    "an invented output before": ("```python\na\n```\n``` output\n5\n```\n```output", "a\n"),
    "no block": ("Let me see.\n```output", None),
    "an output block is no code": ("``` output\n5\n```\n```output", None),
    "another language": ("```sql\nselect\n```\n```output", None),
    "an unknown tool after a known": ("```python\na\n```\n```sql\nb\n```\n```output", None),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requested_call(name: str) -> None:
    text, code = REQUESTS[name]
    request = requested_call(text, ["python"])
    if code is None:
        assert isinstance(request, ToolResult)
        assert (request.status, request.executed, request.stop) == ("malformed", False, False)
        assert "python" in request.text
    else:
        assert request == ToolCall("python", code)


def test_a_tool_is_chosen_by_the_info_string() -> None:
    tools = ["python", "Search"]
    assert requested_call("```search\nq\n```\n```output", tools) == ToolCall("Search", "q\n")
    unnamed = requested_call("```\nq\n```\n```output", tools)
    assert isinstance(unnamed, ToolResult)
    assert "python, Search" in unnamed.text


# Whatever stood behind the marker inside the last token, the block is well formed.

TAILS = [
    "",
    "\n",
    "s",
    " here",
    "\r\n",
    "\n12",
    "\n``",
    "\n```\n",
    "\n```\nThe answer",
    "```",
    "`",
    "\n  ",
    "()",
]
HEADS = ["", "x\n", "```python\nx\n```\n", "```python\nx\n", "  ", "see ", "```python\nx\n``` ", "`"]
SHOWN = [
    "",
    "5",
    "5\n",
    "```",
    "```\n",
    "\n```output\n7\n```\n",
    "  ```\nx",
    "a\n````\n```",
    "\r\n",
    "\t```x",
]


def check_observation(head: str, tail: str, shown: str) -> None:
    turn = head + MARKER + tail
    observation = observation_text(turn, shown)
    before, after = segments(turn), segments(turn + observation)
    last, end = after[-2:]
    assert (last.kind, last.closed, end.body) == ("output", True, "\n")
    assert observation.replace("\\", "").endswith(shown if shown.endswith("\n") else shown + "\n", 0, -4)
    assert observation.endswith("\n```\n")
    assert last.start + len(MARKER) <= len(turn) + len(observation) - len(shown)  # all of it is inside
    # Nothing of the turn has another meaning than before.
    assert [s.kind for s in before if s.kind == "code"] == [s.kind for s in after if s.kind == "code"]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("head", HEADS)
def test_observation_is_a_block_whatever_stands_around_it(head: str, tail: str) -> None:
    for shown in SHOWN:
        check_observation(head, tail, shown)


@given(head=TEXTS.filter(lambda t: MARKER not in t), tail=TEXTS, shown=TEXTS)
@settings(max_examples=300, deadline=None)
def test_observation_is_a_block_for_any_text(head: str, tail: str, shown: str) -> None:
    if (head + MARKER).find(MARKER) == len(head):
        check_observation(head, tail, shown.replace("\\", ""))


def test_observation_of_the_common_cases_is_the_papers() -> None:
    turn = "```python\nx\n```\n```output"
    assert observation_text(turn, "372\n") == "\n372\n```\n"
    assert observation_text(turn + "\n", "372") == "372\n```\n"
    assert observation_text("So ```output", "372") == "\n```output\n372\n```\n"


# Output blocks that the policy wrote itself.


def spans(text: str, answered: bool = False) -> list[str]:
    return [text[a:b] for a, b in invented_outputs(text, answered)]


def test_invented_outputs_are_the_text_behind_the_marker_line() -> None:
    text = "```python\nx\n```\n```output\n5\n```\nThe answer is 5."
    assert spans(text) == ["5\n```"]
    assert spans(text + "\n``` output\n6") == ["5\n```", "6"]
    assert spans("```outputs\n5\n```") == ["5\n```"]


def test_an_answered_marker_is_no_invention() -> None:
    assert spans("```python\nx\n```\n```output", answered=True) == []
    assert spans("```python\nx\n```\n```output\n12", answered=True) == []  # its token's own text
    assert spans("```output") == []  # nothing was made up yet
    assert spans("```output\n  \n") == []


def test_inventions_before_the_answered_marker_are_found() -> None:
    assert spans("``` output\n5\n```\n```python\nx\n```\n```output", answered=True) == ["5\n```"]
    assert spans("``` output\n5\n```\nSo ```output", answered=True) == ["5\n```"]
    assert spans("``` output\n5\nSo ```output", answered=True) == ["5\nSo ```output"]


@given(text=TEXTS, answered=st.booleans())
@settings(max_examples=200, deadline=None)
def test_invented_spans_lie_within_output_blocks(text: str, answered: bool) -> None:
    blocks = [s for s in segments(text) if s.kind == "output"]
    for start, stop in invented_outputs(text, answered):
        assert any(b.start < start < stop == b.end for b in blocks)
        assert text[start:stop].strip()
