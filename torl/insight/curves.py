"""The curves of a run, as one picture and as SVG for a page in light or dark.

Rollout metrics of step s are drawn at x = s, the updates that the policy had then; a held-out
evaluation after step s is drawn at s + 1.
"""

import io
import re
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from torl.insight.examples import heldout_of
from torl.insight.profile import PARTS, profile
from torl.insight.stats import slug
from torl.run import Run

_INK, _GRID = "#0f0e0d", "#e0dfde"  # written as these, then made to follow the page's colours
_SERIES = [
    "#2f7fdc",
    "#e07b39",
    "#1f9d6b",
    "#b44fc0",
    "#c9a227",
    "#8a8f98",
]  # legible on white and on black
_STYLE: Any = {  # matplotlib's own type lists every name there is
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "torl",  # the same run gives the same file
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _GRID,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.constrained_layout.w_pad": 0.14,
    "figure.constrained_layout.h_pad": 0.14,
}


class Point(NamedTuple):
    """One held-out evaluation: after how many updates, its accuracy and 95% interval."""

    updates: int
    accuracy: float
    low: float
    high: float


class Curves(NamedTuple):
    """All that is drawn: the lines of metrics.jsonl, and the held-out evaluations by task set."""

    rows: list[dict[str, float]]
    heldout: dict[str, list[Point]]

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """x and y of one metric, where it was measured."""
        have = [(row["step"], row[name]) for row in self.rows if name in row]
        return [x for x, _ in have], [y for _, y in have]

    @property
    def end(self) -> float:
        """The updates that were done."""
        evaluated: list[float] = [p.updates for points in self.heldout.values() for p in points]
        return max([row["step"] + 1 for row in self.rows] + evaluated, default=1)


Panel = Callable[[Axes, Curves], None]


def curves_of(run: Run) -> Curves:
    """What a run, finished or not, has measured so far."""
    rows = run.metrics()
    points: dict[str, dict[int, Point]] = {}
    for row in rows:
        for name in (n for n in row if n.startswith("heldout/") and n.endswith("/accuracy")):
            low, high = (
                row.get(name.replace("/accuracy", end), row[name]) for end in ("/ci_low", "/ci_high")
            )
            point = Point(int(row["step"]) + 1, row[name], low, high)
            points.setdefault(name.split("/")[1], {})[point.updates] = point
    last = int(rows[-1]["step"]) + 1 if rows else 0
    for name, evaluation in heldout_of(run).items():
        for updates, summary in ((0, evaluation.before), (last, evaluation.after)):
            if summary is not None and summary["accuracy"] is not None:
                point = Point(updates, summary["accuracy"], *summary["ci95"])
                points.setdefault(slug(name), {})[updates] = point
    return Curves(rows, {name: [found[x] for x in sorted(found)] for name, found in points.items()})


def png(curves: Curves) -> bytes:
    """One picture with four panels, on white."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.6, 6.0), dpi=160, facecolor="white", layout="constrained")
        for axes, (title, panel) in zip(figure.subplots(2, 2).flat, _PANELS[:4], strict=True):
            _draw(axes, title, panel, curves)
        figure.align_ylabels()
        return _saved(figure, "png")


def svgs(curves: Curves) -> list[str]:
    """One SVG for each panel that has something to show, to stand inside a page.

    Text and axes take the page's own colour, the grid its ``--line``.
    """
    drawn = []
    for title, panel in _PANELS:
        with rc_context(_STYLE):
            figure = Figure(figsize=(5.4, 3.3), layout="constrained")
            if _draw(figure.subplots(), title, panel, curves):
                drawn.append(_inline(title, _saved(figure, "svg").decode()))
    return drawn


def _saved(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    nothing = {"png": ["Software"], "svg": ["Creator", "Date", "Format", "Type"]}[kind]
    figure.savefig(buffer, format=kind, transparent=kind == "svg", metadata=dict.fromkeys(nothing))
    return buffer.getvalue()


def _inline(title: str, svg: str) -> str:
    """Without what only a file needs (declaration, namespaces), sized by the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(
        r'<svg width="[^"]*" height="[^"]*"', f'<svg role="img" aria-label="{title}"', svg, count=1
    )
    svg = svg.replace("'DejaVu Sans'", "system-ui, sans-serif")
    return svg.replace(_INK, "currentColor").replace(_GRID, "var(--line, #8884)")


def _draw(axes: Axes, title: str, panel: Panel, curves: Curves) -> bool:
    """Draws one panel with what all share. False when it had nothing to show."""
    axes.set_title(title)
    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    panel(axes, curves)
    if not axes.has_data():
        axes.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axes.transAxes, alpha=0.6)
        return False
    pad = max(0.5, 0.03 * curves.end)
    axes.set_xlim(-pad, curves.end + pad)  # the same in all panels
    _legend(axes)
    return True


def _legend(axes: Axes) -> None:
    """Beside the title, where it can hide nothing, when it has room there."""
    handles, labels = axes.get_legend_handles_labels()
    if len(" ".join(labels)) > 45:
        axes.legend(handles, labels, loc="best", handlelength=1.3)
    elif len(labels) > 1:
        form = {"handlelength": 1.3, "columnspacing": 1.3, "borderpad": 0.0}
        legend = axes.legend(handles, labels, loc="lower right", ncols=len(labels), **form)
        legend.set_bbox_to_anchor((1.01, 1.02))


def _accuracy(axes: Axes, curves: Curves) -> None:
    _line(axes, curves, "rollout/accuracy", "training", _SERIES[0])
    for (name, points), colour in zip(curves.heldout.items(), cycle(_SERIES[1:]), strict=False):
        x = [p.updates for p in points]
        y = [p.accuracy for p in points]
        error = [[p.accuracy - p.low for p in points], [p.high - p.accuracy for p in points]]
        label = f"held-out {name.replace('_', ' ')}, 95%"
        axes.errorbar(x, y, error, fmt="o--", color=colour, ms=5, lw=1.2, capsize=3, label=label, zorder=3)
    _percent(axes, "accuracy (%)")


def _reward(axes: Axes, curves: Curves) -> None:
    _line(axes, curves, "reward/mean", "mean reward", _SERIES[0])
    axes.set_ylabel("mean reward")


def _tool_use(axes: Axes, curves: Curves) -> None:
    _line(axes, curves, "rollout/code_ratio", "code ratio", _SERIES[0])
    _line(axes, curves, "rollout/pass_ratio", "pass ratio", _SERIES[1])
    _percent(axes, "ratio (%)")


def _tokens(axes: Axes, curves: Curves) -> None:
    _line(axes, curves, "rollout/completion_tokens", "sampled", _SERIES[0])
    _line(axes, curves, "rollout/observation_tokens", "observations", _SERIES[1])
    axes.set_ylabel("tokens per trajectory")
    axes.set_ylim(bottom=0)


def _time(axes: Axes, curves: Curves) -> None:
    """Bars of each step's seconds, stacked by what they were spent on."""
    rows = [row for row in curves.rows if "time/step_s" in row]
    bottom = [0.0] * len(rows)
    for name, colour in zip(PARTS, _SERIES, strict=True):
        heights = [profile([row])[name] for row in rows]
        if any(heights):
            axes.bar([r["step"] for r in rows], heights, 0.85, bottom, color=colour, label=name, lw=0)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.set_ylabel("seconds per step")


_PANELS: list[tuple[str, Panel]] = [
    ("Accuracy", _accuracy),
    ("Reward", _reward),
    ("Use of the tool", _tool_use),
    ("Length", _tokens),
    ("Time", _time),
]


def _line(axes: Axes, curves: Curves, name: str, label: str, colour: str) -> None:
    """A metric's values, faint, under their moving average; the values alone when they are few."""
    x, y = curves.series(name)
    if not x:
        return
    if len(x) < 8:
        axes.plot(x, y, "o-", color=colour, lw=1.8, ms=4, label=label)
        return
    axes.plot(x, y, color=colour, lw=1, alpha=0.35)
    axes.plot(x, _smooth(y, max(3, len(y) // 10)), color=colour, lw=2, label=label)


def _smooth(values: Sequence[float], width: int) -> list[float]:
    """Centred moving average over ``width`` values, over fewer at the ends."""
    half = width // 2
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def _percent(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}"))
