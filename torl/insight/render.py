"""A trajectory for people to read, coloured by who wrote what: in the terminal, and as HTML.

What a model or its code printed is shown, never obeyed: control characters, which could move
the cursor or hide text, appear as escapes.
"""

import html
import re
from typing import Literal

from rich.console import Group
from rich.text import Text

from torl.insight.pieces import Kind, pieces
from torl.types import ToolResult, Trajectory

Shown = Kind | Literal["prompt"]

_STYLES: dict[Shown, str] = {
    "prompt": "dim",
    "prose": "",
    "code": "cyan",
    "marker": "cyan",
    "observation": "yellow",
    "answer": "bold reverse",
    "invented": "bold red",
}

_VERDICT: dict[bool | None, tuple[str, str]] = {  # in words, and its colour in the terminal
    True: ("correct", "green"),
    False: ("wrong", "red"),
    None: ("not judged", ""),
}

_LEGEND: dict[Shown, str] = {
    "prompt": "prompt",
    "prose": "policy's prose",
    "code": "policy's code",
    "observation": "observation",
    "answer": "final answer",
    "invented": "invented output",
}

# C0 but tab and newline, DEL, C1, direction overrides, surrogates
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# Colours for light and dark, as custom properties that a page may set itself.
CSS = """
.trajectory { margin: 1rem 0; }
.trajectory header { font-size: .9rem; margin-bottom: .4rem; }
.trajectory pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: .8rem 1rem; margin: 0;
  border: 1px solid var(--line, #8884); border-radius: 6px; background: var(--panel, #8881); }
.t-prompt { color: var(--muted, #777); }
.t-code, .t-marker { color: var(--code, #0b6fb8); }
.t-observation { color: var(--observation, #a15c00); }
.t-answer { font-weight: 700; outline: 1px solid; border-radius: 2px; }
.correct .t-answer { color: var(--right, #14743c); }
.wrong .t-answer { color: var(--wrong, #c2243a); }
.t-invented { color: var(--wrong, #c2243a); text-decoration: underline wavy; }
""".strip()


def visible(text: str) -> str:
    """The text with control characters and lone surrogates written as escapes, e.g. ``\\x1b``."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text.replace("\r\n", "\n"))


def headline(trajectory: Trajectory) -> list[str]:
    """What happened, in short phrases: verdict, reward and its parts, end, calls."""
    phrases = [trajectory.id, _VERDICT[trajectory.correct][0]]
    if trajectory.reward is not None:
        parts = ", ".join(f"{name} {value:+g}" for name, value in trajectory.reward_parts.items())
        phrases.append(f"reward {trajectory.reward:+g}" + (f" ({parts})" if parts else ""))
    phrases += [f"ended by {trajectory.stop_reason}", _calls(trajectory.calls)]
    if trajectory.invented_outputs:
        phrases.append(f"invented outputs: {trajectory.invented_outputs}")
    return [visible(phrase) for phrase in phrases]


def render(trajectory: Trajectory, prompt: str | None = None) -> Group:
    """For the terminal: ``console.print(render(trajectory))``.

    ``prompt`` is the decoded prompt; without it the task's problem stands in its place.
    """
    colour = _VERDICT[trajectory.correct][1]
    body = _text(_shown(trajectory, prompt), colour)
    return Group(Text(" · ".join(headline(trajectory)), f"bold {colour}"), body, Text())


def coloured(trajectory: Trajectory) -> Text:
    """What stands behind the prompt, in the colours of ``render``."""
    return _text(_episode(trajectory), _VERDICT[trajectory.correct][1])


def _text(shown: list[tuple[Shown, str]], colour: str) -> Text:
    body = Text()
    for kind, text in shown:
        body.append(text, f"{_STYLES[kind]} {colour}" if kind == "answer" else _STYLES[kind])
    return body


def legend() -> Text:
    """What the colours mean, in one line."""
    return Text(" · ").join(Text(name, _STYLES[kind]) for kind, name in _LEGEND.items())


def to_html(trajectory: Trajectory, prompt: str | None = None) -> str:
    """An HTML fragment in which everything is escaped. Its colours are in ``CSS``."""
    spans = "".join(
        f'<span class="t-{kind}">{html.escape(text)}</span>' for kind, text in _shown(trajectory, prompt)
    )
    head = html.escape(" · ".join(headline(trajectory)))
    verdict = {True: " correct", False: " wrong", None: ""}[trajectory.correct]
    return f'<article class="trajectory{verdict}"><header>{head}</header><pre>{spans}</pre></article>'


def html_legend() -> str:
    """What the colours mean, as a fragment."""
    names = (f'<span class="t-{kind}">{html.escape(name)}</span>' for kind, name in _LEGEND.items())
    return f'<p class="legend">{" · ".join(names)}</p>'


def _shown(trajectory: Trajectory, prompt: str | None) -> list[tuple[Shown, str]]:
    asked = trajectory.task.problem if prompt is None else prompt
    before: list[tuple[Shown, str]] = [("prompt", visible(asked.rstrip("\n")) + "\n")]
    return before + _episode(trajectory)


def _episode(trajectory: Trajectory) -> list[tuple[Shown, str]]:
    return [(kind, visible(text)) for kind, text in pieces(trajectory)]


def _calls(calls: list[ToolResult]) -> str:
    if not calls:
        return "no calls"
    listed = ", ".join(f"{c.status} {c.run_s:.2f} s" if c.executed else c.status for c in calls)
    return f"calls: {len(calls)} ({listed})"
