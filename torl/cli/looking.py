"""Commands that only look: ``torl recipes``, ``show``, ``report`` and ``doctor``."""

from pathlib import Path
from typing import Annotated

import typer

from torl.cli.shared import console, say
from torl.config import builtin_recipes
from torl.errors import UserError
from torl.run import Run

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]


def recipes() -> None:
    """List the built-in recipes."""
    found = builtin_recipes()
    width = max(map(len, found))
    for name, description in found.items():
        say(f"{name:<{width}}  {description}")


def show(
    run: RunArgument,
    step: Annotated[
        int | None, typer.Option(min=0, help="Trajectories of this training step [the newest].")
    ] = None,
    evaluation: Annotated[
        str | None,
        typer.Option("--eval", help='Of an evaluation instead: "before", "after", "step-00010".'),
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="How many, spread evenly.")] = 3,
) -> None:
    """Print trajectories, coloured by who wrote what."""
    from torl.insight.render import legend, render
    from torl.insight.store import read_trajectories

    opened = Run.open(run)
    files = _evaluation_files(opened, evaluation) if evaluation else [_step_file(opened, step)]
    found = [trajectory for file in files for trajectory in read_trajectories(file)]
    shown = min(n, len(found))
    say(f"{shown} of {len(found)} trajectories of {', '.join(map(str, files))}", "bold")
    console.print(legend())
    for i in range(shown):
        console.print(render(found[i * len(found) // shown]), soft_wrap=True)


def _step_file(run: Run, step: int | None) -> Path:
    from torl.insight.store import step_file

    stored = sorted(run.trajectories.glob("step-*.jsonl"))
    if not stored:
        raise UserError(f"{run.path} holds no training step yet; --eval before may show something")
    if step is None:
        return stored[-1]
    path = step_file(run.trajectories, step)
    if not path.is_file():
        raise UserError(f"{run.path} has no step {step}; it has {stored[0].stem} to {stored[-1].stem}")
    return path


def _evaluation_files(run: Run, when: str) -> list[Path]:
    files = sorted((run.path / "eval").glob("*.jsonl"))
    chosen = [path for path in files if path.stem.startswith(f"{when}-")]
    if not chosen:
        names = ", ".join(path.stem for path in files) or "none"
        raise UserError(f"{run.path} has no evaluation {when!r}; it has: {names}")
    return chosen


def report(run: RunArgument) -> None:
    """Write a run's report anew and print its path."""
    from torl.insight.report import write_report

    typer.echo(str(write_report(run)))


def doctor() -> None:
    """Show what this machine can do."""
    from torl.doctor import print_doctor

    if not print_doctor(console):
        raise typer.Exit(1)
