"""Checkpoints: a plain Hugging Face folder beside the learner's state, whole or not at all.

checkpoints/step-00020/
  model/                what transformers loads
  learner.safetensors   master weights and optimizer state
  state.json            steps done, updates done, seconds spent, held-out results so far
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from torl.errors import UserError
from torl.insight.files import saving, sync
from torl.learner.local import LocalLearner
from torl.weights import no_progress_bars

_PREFIX = "step-"


def save_checkpoint(
    folder: Path, learner: LocalLearner, tokenizer: Any, *, step: int, state: dict[str, Any], keep: int
) -> Path:
    """Writes the checkpoint after ``step`` steps, then removes all but the ``keep`` newest.
    An interrupted write leaves the older ones as they were. Raises UserError on a full disk."""
    target = folder / f"{_PREFIX}{step:05d}"
    temporary = folder / f".{target.name}.tmp"
    with saving(target), _os_errors():
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            save_model(temporary / "model", learner.model, tokenizer)
            learner.save(temporary)
            (temporary / "state.json").write_text(json.dumps({"step": step, **state}))
            for path in [*temporary.rglob("*"), temporary]:
                sync(path)  # before the name says that it is complete
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
            sync(folder)  # and the name itself, before the older ones go
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    for old in _complete(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """A folder that transformers loads: weights, configuration, tokenizer."""
    with no_progress_bars():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run's ``checkpoints`` folder, if there is one."""
    return next(reversed(_complete(folder)), None)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """What state.json says. Raises UserError when it is damaged."""
    try:
        state: dict[str, Any] = json.loads((checkpoint / "state.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{checkpoint} is damaged ({error}); remove it to go on from the one before"
        ) from error
    return state


def _complete(folder: Path) -> list[Path]:
    found = [path for path in folder.glob(f"{_PREFIX}*") if (path / "state.json").is_file()]
    return sorted(found, key=lambda path: (len(path.name), path.name))  # past step 99999 too


@contextmanager
def _os_errors() -> Iterator[None]:
    """safetensors reports a full disk as an error of its own, with the number in its text."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
