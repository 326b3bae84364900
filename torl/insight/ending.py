"""How a run ends in the terminal: what it reached, one episode worth reading, where all lies."""

import shlex
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table

from torl.insight.examples import Evaluation, heldout_of, only_after_training
from torl.insight.render import legend, render
from torl.insight.stats import Summary
from torl.learner.checkpoint import newest_checkpoint
from torl.run import Run

Row = tuple[str, str, Summary | None]
"""A task set, when it was measured, and what was found."""


def print_ending(run: Run, console: Console, example: bool = True) -> None:
    """The table of a finished run, with ``example`` one episode, its paths, and how to talk to it."""
    console.print()
    console.print(accuracy_table(_rows(heldout_of(run))))
    if example:
        _print_example(run, console)
    console.print()
    for name, value in _paths(run).items():
        console.print(f"{name:<12}  {value}", markup=False, soft_wrap=True)
    console.print(f"\nTalk to it:   torl chat {shlex.quote(str(run.path))}", markup=False, soft_wrap=True)


def accuracy_table(rows: Iterable[Row]) -> Table:
    """Accuracy with its 95% interval and the tool statistics; a gain where a set has a row before."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("held-out", ""):
        table.add_column(title)
    for title in ("accuracy", "95% interval", "gain", "tasks", "code ratio", "pass ratio"):
        table.add_column(title, justify="right", no_wrap=True)
    before: dict[str, float] = {}
    for name, when, summary in rows:
        table.add_row(*(_cells(name, when, summary, before) if summary else (name, when, "not measured")))
        if summary and summary["accuracy"] is not None:
            before.setdefault(name, summary["accuracy"])
    return table


def _cells(name: str, when: str, summary: Summary, before: dict[str, float]) -> list[str]:
    low, high = summary["ci95"]
    accuracy = summary["accuracy"]
    gained = f"{100 * (accuracy - before[name]):+.1f}" if accuracy is not None and name in before else ""
    return [
        "" if name in before else name,
        when,
        _percent(accuracy),
        f"{100 * low:.1f} – {_percent(high)}",
        gained,
        str(summary["n"]),
        _percent(summary["code_ratio"]),
        _percent(summary["pass_ratio"]),
    ]


def _rows(evaluations: dict[str, Evaluation]) -> Iterator[Row]:
    for name, evaluation in evaluations.items():
        if evaluation.before is not None:
            yield name, "before", evaluation.before
        yield name, "after", evaluation.after


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
