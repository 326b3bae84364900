"""``torl train`` and ``torl quickstart``."""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from torl.cli.shared import Overrides, console, no_progress_bars, say
from torl.config import Recipe, load_recipe
from torl.errors import UserError
from torl.run import Run, default_run_dir

INTERRUPTED = 130  # what a shell calls the end by Ctrl-C

RunOption = Annotated[
    Path | None, typer.Option("--run", help="The run's folder [runs/RECIPE-DATE-N].", show_default=False)
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on with --run, or with this recipe's newest unfinished run.")
]
ShowOption = Annotated[bool, typer.Option("--show", help="Print the full resolved recipe and do nothing.")]


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A built-in name, or a .yaml file.")],
    overrides: Overrides = None,
    run: RunOption = None,
    resume: ResumeOption = False,
    show: ShowOption = False,
) -> None:
    """Train a model as a recipe says."""
    loaded = load_recipe(recipe, overrides)
    if show:
        typer.echo(loaded.to_yaml(), nl=False)
    else:
        _train(loaded, run, resume)


def quickstart(overrides: Overrides = None, run: RunOption = None, resume: ResumeOption = False) -> None:
    """Train a small model to use Python, here and now."""
    _train(load_recipe("quickstart", overrides), run, resume, example=True)


def _train(recipe: Recipe, folder: Path | None, resume: bool, example: bool = False) -> None:
    """Trains, and ends with what came of it; an interrupted run with how to go on."""
    if folder is None:
        folder = newest_unfinished(recipe.name) if resume else default_run_dir(recipe.name)
    tools = ", ".join(recipe.tools) or "none"
    say(f"{recipe.name}: {recipe.model}, {recipe.steps} steps, tools: {tools}, run: {folder}", "bold")
    import torl.train as training  # a few seconds: torch
    from torl.insight.ending import print_ending

    no_progress_bars()
    run = training.train(recipe, folder, resume=resume)
    if run.summary() is None:
        _say_how_to_resume(run)
        raise typer.Exit(INTERRUPTED)
    print_ending(run, console, example)


def _say_how_to_resume(run: Run) -> None:
    rows = run.metrics()
    done = int(rows[-1]["step"]) + 1 if rows else 0
    recipe, folder = shlex.quote(str(run.path / "recipe.yaml")), shlex.quote(str(run.path))
    say(f"\nStopped after {done} of {run.recipe.steps} steps; all of them are saved. Go on with:")
    say(f"  torl train {recipe} --run {folder} --resume", "bold")


def newest_unfinished(recipe_name: str, root: Path = Path("runs")) -> Path:
    """The run of this recipe that was saved last and has not finished. Raises UserError."""
    found = []
    for path in root.glob("*/recipe.yaml"):
        states = list(path.parent.glob("checkpoints/step-*/state.json"))
        if states and not (path.parent / "summary.json").exists() and _name(path) == recipe_name:
            found.append((max(state.stat().st_mtime for state in states), path.parent))
    if not found:
        raise UserError(
            f"no unfinished run of {recipe_name} with a checkpoint in {root}/; name the run's folder "
            "with --run, or leave --resume out"
        )
    return max(found)[1]


def _name(recipe_file: Path) -> str | None:
    with suppress(UserError):  # a damaged recipe is not the one that was asked for
        return load_recipe(str(recipe_file)).name
    return None
