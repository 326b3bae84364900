"""The command line: ``torl train``, ``torl eval``, ``torl chat`` and the rest.

It starts fast: torch and transformers are imported inside the commands that need them.
"""

import typer

from torl.cli.bench import bench
from torl.cli.conversation import chat
from torl.cli.evaluation import evaluate
from torl.cli.looking import doctor, recipes, report, show
from torl.cli.sandbox import sandbox
from torl.cli.shared import Commands
from torl.cli.training import quickstart, train

app = typer.Typer(
    name="torl",
    help="Train language models by reinforcement learning to use tools while they reason.",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a bug of ours keeps Python's own traceback
    rich_markup_mode=None,  # [key=value] in a help text is text
)
app.command()(quickstart)
app.command()(train)
app.command("eval")(evaluate)
app.command()(chat)
app.command()(recipes)
app.command()(show)
app.command()(report)
app.command()(doctor)
app.add_typer(sandbox)
app.add_typer(bench)

__all__ = ["app"]
