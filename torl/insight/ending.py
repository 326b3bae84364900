"""How a run ends in the terminal: what it reached, one episode worth reading, where all lies."""

import shlex
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torl.insight.examples import Evaluation, heldout_of, only_after_training
from torl.insight.render import legend, render
from torl.insight.stats import Summary
from torl.learner.checkpoint import newest_checkpoint
from torl.run import Run

STATISTICS = ("accuracy", "95% interval", "tasks", "code ratio", "pass ratio")


def print_ending(run: Run, console: Console, example: bool = True) -> None:
    """The table of a finished run, with ``example`` one episode, its paths, and how to talk to it."""
    console.print()
    console.print(gain_table(heldout_of(run)))
    if example:
        _print_example(run, console)
    console.print()
    for name, value in _paths(run).items():
        console.print(f"{name:<12}  {value}", markup=False, soft_wrap=True)
    console.print(f"\nTalk to it:   torl chat {shlex.quote(str(run.path))}", markup=False, soft_wrap=True)


def gain_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """Before against after, a pair of rows for each held-out set; the gain is in points."""
    table = _table(["held-out", ""], [*STATISTICS, "gain"])
    for name, (before, after) in evaluations.items():
        table.add_row(escape(name), "before", *_cells(before))
        table.add_row("", "after", *_cells(after), _gain(before, after))
    return table


def accuracy_table(found: Mapping[str, Summary]) -> Table:
    """One row for each held-out set."""
    table = _table(["held-out"], STATISTICS)
    for name, summary in found.items():
        table.add_row(escape(name), *_cells(summary))
    return table


def _table(names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in names:
        table.add_column(title)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _cells(summary: Summary | None) -> list[str]:
    if summary is None:
        return ["–"] * len(STATISTICS)
    low, high = summary["ci95"]
    return [
        _percent(summary["accuracy"]),
        f"{100 * low:.1f} – {_percent(high)}",
        str(summary["n"]),
        _percent(summary["code_ratio"]),
        _percent(summary["pass_ratio"]),
    ]


def _gain(before: Summary | None, after: Summary | None) -> str:
    first, last = (summary["accuracy"] if summary else None for summary in (before, after))
    return "–" if first is None or last is None else f"{100 * (last - first):+.1f}"


def _print_example(run: Run, console: Console) -> None:
    solved = only_after_training(run)
    console.print()
    if solved is None:
        console.print("No held-out task was wrong before training and right after it.")
        return
    console.print("Solved only after training:", style="bold")
    console.print(legend())
    console.print(render(solved.after), soft_wrap=True)


def _paths(run: Run) -> dict[str, str]:
    checkpoint = newest_checkpoint(run.checkpoints)
    model = (
        {} if checkpoint is None else {"model": f"{checkpoint / 'model'}  (a plain Hugging Face folder)"}
    )
    return {**model, "trajectories": str(run.trajectories), "report": str(run.report)}


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
