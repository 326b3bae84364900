"""Going on with a run that was interrupted: what must be as it was, and what may change."""

from pathlib import Path
from typing import Any

from torl.config import Recipe
from torl.errors import UserError
from torl.insight.files import atomic_write
from torl.run import Run

MAY_CHANGE = ("steps", "eval", "checkpoint", "name", "description")


def reopen(path: Path, recipe: Recipe) -> Run:
    """An interrupted run, to go on with. What decides its results must be as it was."""
    run = Run.open(path, lock=True)
    kept = set(Recipe.model_fields) - set(MAY_CHANGE)
    changed = _differences(run.recipe.model_dump(include=kept), recipe.model_dump(include=kept))
    if changed:
        run.close()
        raise UserError(
            f"{path} was begun with another recipe. It differs in {', '.join(changed)}. Resume with the "
            f"same one ({path / 'recipe.yaml'}; {', '.join(MAY_CHANGE)} may change), or use another folder"
        )
    run.recipe = recipe
    atomic_write(path / "recipe.yaml", recipe.to_yaml())
    return run


def _differences(old: dict[str, Any], new: dict[str, Any], section: str = "") -> list[str]:
    """What changed, e.g. ["learner.lr (1e-06, now 1e-05)"]."""
    found = []
    for key in old | new:
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            found += _differences(before, now, f"{section}{key}.")
        elif before != now:
            found.append(f"{section}{key} ({before!r}, now {now!r})")
    return found
