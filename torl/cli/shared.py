"""What the commands share: how errors are shown, common arguments, the console."""

from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from torl.errors import UserError, WorldFault

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Changes to the recipe, e.g. steps=10 learner.lr=1e-5 tools=none."
    ),
]
ModelOrRun = Annotated[
    str,
    typer.Argument(
        metavar="MODEL_OR_RUN", help="A run's folder, a checkpoint, a model's folder, or its name."
    ),
]
RecipeOption = Annotated[
    str | None,
    typer.Option("--recipe", help="Recipe that gives prompt and limits [a run: its own; else quickstart]."),
]

console = Console(highlight=False)


class Commands(TyperGroup):
    """The group of all commands. What the user got wrong is one message, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            complain(str(error))
            raise typer.Exit(2) from error
        except WorldFault as error:  # nor is the world's fault a bug of ours
            complain(str(error))
            raise typer.Exit(1) from error


def group(name: str, about: str) -> typer.Typer:
    """Commands under a name, as ``torl sandbox``."""
    return typer.Typer(name=name, help=about, cls=Commands, no_args_is_help=True, rich_markup_mode=None)


def complain(message: str) -> None:
    """An error in red, on standard error. Lines are not broken: paths stay whole."""
    Console(stderr=True, highlight=False).print(
        f"error: {message}", style="bold red", markup=False, soft_wrap=True
    )


def say(message: str, style: str | None = None) -> None:
    """A line as it is: no markup, and not broken, so that commands and paths can be copied."""
    console.print(message, style=style, markup=False, soft_wrap=True)


def no_progress_bars() -> None:
    """Silences transformers' bars ("Writing model shards"), which would tear torl's own display."""
    from transformers.utils import logging

    bars: Any = logging  # its switches carry no types
    bars.disable_progress_bar()
