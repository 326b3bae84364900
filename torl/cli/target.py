"""What ``torl eval`` and ``torl chat`` are pointed at: a run, one of its checkpoints, or a model."""

from dataclasses import dataclass
from pathlib import Path

from torl.config import Recipe, load_recipe
from torl.errors import UserError


@dataclass(frozen=True)
class Target:
    """A model and the recipe by which it is asked."""

    recipe: Recipe
    model: str | None = None  # a checkpoint's model folder; None: the recipe's own model
    steps: int = 0  # training steps behind the model, as far as known

    @property
    def name(self) -> str:
        return self.model or self.recipe.model


def target_of(model_or_run: str, recipe: str | None, overrides: list[str] | None) -> Target:
    """A run is taken with its own recipe and its newest checkpoint, a checkpoint with its run's
    recipe, and any other model with ``recipe``. Raises UserError where there is none."""
    path = Path(model_or_run)
    run = _run_of(path)
    if run is None:
        loaded = load_recipe(recipe or "quickstart", overrides)
        return Target(loaded.override(model=model_or_run))
    loaded = load_recipe(recipe or str(run / "recipe.yaml"), overrides)
    checkpoint = _checkpoint(run, path)
    return Target(loaded, str(checkpoint / "model"), _steps(checkpoint))


def _run_of(path: Path) -> Path | None:
    """The run that a path names, or that it lies in: RUN, RUN/checkpoints/step-00010[/model]."""
    folders = [path, *(parent.parent for parent in path.parents if parent.name == "checkpoints")]
    return next((folder for folder in folders if (folder / "recipe.yaml").is_file()), None)


def _checkpoint(run: Path, path: Path) -> Path:
    from torl.learner.checkpoint import newest_checkpoint

    if path != run:
        return path.parent if path.name == "model" else path
    newest = newest_checkpoint(run / "checkpoints")
    if newest is None:
        raise UserError(
            f"{run} has no checkpoint yet; let it run to checkpoint.every, or name its model "
            "instead of the run"
        )
    return newest


def _steps(checkpoint: Path) -> int:
    from torl.learner.checkpoint import read_state

    return int(read_state(checkpoint)["step"])
