"""``torl eval``: held-out accuracy of a run or of any model: training's rollout, and no update."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torl.cli.shared import ModelOrRun, Overrides, RecipeOption, console, no_progress_bars, say
from torl.cli.target import Target, target_of
from torl.config import Recipe
from torl.types import Group

if TYPE_CHECKING:
    from torl.insight.stats import Summary
    from torl.parts import Parts

Found = dict[str, list[Group]]


def evaluate(
    model_or_run: ModelOrRun,
    overrides: Overrides = None,
    *,
    tasks: Annotated[
        list[str] | None,
        typer.Option("--tasks", help="A task source; may be given several times [the recipe's held-out]."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many tasks of each source (a seeded choice).")
    ] = None,
    recipe: RecipeOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder for trajectories and summary.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Measure held-out accuracy, greedy."""
    target = target_of(model_or_run, recipe, overrides)
    _warn_of_training_tasks(target.recipe, tasks or [])
    from torl.evaluate import summaries

    no_progress_bars()
    found = _measure(target, tasks, limit)
    result = summaries(found)
    if out is not None:
        _write(out, found, result, target)
    if as_json:
        typer.echo(_json(result, target))
        return
    from torl.insight.ending import accuracy_table

    say(target.name, "bold")
    console.print(accuracy_table(result))


def _measure(target: Target, sources: list[str] | None, limit: int | None) -> Found:
    """The sources that were asked for, or the recipe's own held-out tasks."""
    from torl.parts import build
    from torl.tasks import TaskSets, load_tasks
    from torl.tasks.load import load_held_out

    recipe = target.recipe.override(**({"tasks.test_limit": limit} if limit else {}))
    test = load_held_out(sources, recipe.tasks) if sources else load_tasks(recipe).test
    parts = build(recipe, tasks=TaskSets(train=[], test=test), model=target.model)
    return asyncio.run(_evaluate(parts, recipe.seed))


async def _evaluate(parts: "Parts", seed: int) -> Found:
    """Progress goes to standard error, so that the result can be piped."""
    from torl.evaluate import evaluate as evaluate_parts
    from torl.insight.progress import Progress

    try:
        with Progress(file=sys.stderr) as progress:
            await parts.start()
            return await evaluate_parts(parts, progress, seed=seed)
    finally:
        await parts.close()


def _write(folder: Path, found: Found, result: dict[str, "Summary"], target: Target) -> None:
    from torl.insight.files import atomic_write
    from torl.insight.stats import slug
    from torl.insight.store import write_trajectories

    for name, groups in found.items():
        write_trajectories(folder / f"{slug(name)}.jsonl", groups, target.steps)
    atomic_write(folder / "summary.json", _json(result, target) + "\n")


def _json(result: dict[str, "Summary"], target: Target) -> str:
    told = {"model": target.name, "steps": target.steps, "recipe": target.recipe.name, "heldout": result}
    return json.dumps(told, indent=2, ensure_ascii=False)


def _warn_of_training_tasks(recipe: Recipe, tasks: list[str]) -> None:
    """The built-in tasks have held-out ones of their own; of a file, all would be measured."""
    from torl.tasks.load import same_source

    for source in tasks:
        if source != "builtin" and same_source(source, recipe.tasks.train):
            typer.echo(
                f"warning: {source} is what the recipe trains on; leave --tasks out to measure only "
                "the tasks that it holds out",
                err=True,
            )
