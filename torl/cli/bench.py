"""``torl bench``: where a run's time goes."""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from torl.cli.shared import Overrides, console, group, say
from torl.config import load_recipe
from torl.insight.profile import PARTS, profile
from torl.run import Run

bench = group("bench", "Where a run's time goes.")


@bench.command("profile")
def profile_command(
    recipe_or_run: Annotated[
        str, typer.Argument(metavar="[RECIPE_OR_RUN]", help="A recipe to take steps of, or a run to read.")
    ] = "quickstart",
    overrides: Overrides = None,
    *,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to take, the first not counted.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print the seconds as JSON.")] = False,
) -> None:
    """Show what a training step's time is spent on."""
    path = Path(recipe_or_run)
    rows = Run.open(path).metrics() if (path / "recipe.yaml").is_file() else _rows(path, overrides, steps)
    found = profile(rows)
    if as_json:
        print(json.dumps(found))
        return
    total = sum(found.values())
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("of a step", "seconds", "share", ""):
        table.add_column(title, justify="left" if title in ("of a step", "") else "right")
    for part in PARTS:
        share = found[part] / total if total else 0.0
        table.add_row(part, f"{found[part]:.2f}", f"{share:.0%}", "█" * round(40 * share))
    table.add_row("all", f"{total:.2f}", "", "")
    console.print(table)


def _rows(recipe: Path, overrides: list[str] | None, steps: int) -> list[dict[str, float]]:
    """The metrics of a few steps of a recipe. The first is left out: it takes memory up."""
    from torl.train import train

    loaded = load_recipe(str(recipe), overrides)
    quiet = {"steps": steps + 1, "eval.before": False, "eval.every": 0, "tasks.test_limit": 1}
    with tempfile.TemporaryDirectory() as folder:
        say(f"{steps + 1} steps of {loaded.name} ...")
        run = train(loaded.override(**quiet, **{"checkpoint.every": 0}), Path(folder) / "run")
        return run.metrics()[1:]
