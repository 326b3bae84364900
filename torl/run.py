"""A run's folder: who may write to it, what lies where, and how it survives a kill.

    recipe.yaml        the resolved recipe             metrics.jsonl   one object per step
    versions.json      what it ran on                  trajectories/   step-00012.jsonl, ...
    summary.json       before and after (at the end)   eval/           before-<set>.jsonl, ...
    report.html        the report                      checkpoints/    made by the learner

Steps count from 0; "resume at step s" means that s steps are done and s is the next one.
"""

import errno
import fcntl
import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torl.config import Recipe, load_recipe
from torl.errors import UserError
from torl.insight.files import atomic_write, remove_temporaries, saving
from torl.insight.stats import Summary, slug
from torl.insight.store import drop_steps, step_file, write_trajectories
from torl.insight.versions import versions
from torl.types import Group

_LOCK = ".lock"


class Run:
    """One run's folder. Make it with ``Run.create`` or ``Run.open``; a context manager."""

    def __init__(self, path: Path, recipe: Recipe, lock: int | None = None):
        self.path = path
        self.recipe = recipe
        self._lock = lock

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe) -> Self:
        """A new run, locked. Refuses a folder that is in use or that holds anything."""
        path = Path(path)
        lock = _acquire(path)
        try:
            _refuse_used(path)
            atomic_write(path / "recipe.yaml", recipe.to_yaml())
            atomic_write(path / "versions.json", _json(versions()))
        except BaseException:
            _release(lock)
            raise
        return cls(path, recipe, lock)

    @classmethod
    def open(cls, path: str | Path, lock: bool = False) -> Self:
        """An existing run: to read it, or with ``lock`` to go on writing to it."""
        path = Path(path)
        if not (path / "recipe.yaml").is_file():
            raise UserError(f"{path} is not the folder of a run: it has no recipe.yaml{_runs_hint(path)}")
        recipe = load_recipe(str(path / "recipe.yaml"))
        return cls(path, recipe, _acquire(path) if lock else None)

    # Where things lie

    @property
    def trajectories(self) -> Path:
        return self.path / "trajectories"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def eval_file(self, when: str, task_set: str) -> Path:
        """Trajectories of an evaluation; ``when`` is "before", "after" or e.g. "step-00010"."""
        return self.path / "eval" / f"{when}-{slug(task_set)}.jsonl"

    # Writing

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds a line to metrics.jsonl. A number that is not finite becomes null."""
        row: dict[str, Any] = {"step": step, "unix_time": round(time.time(), 3)}
        row |= {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        _append(self.path / "metrics.jsonl", json.dumps(row).encode() + b"\n")

    def write_step(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
        """The trajectories and the metrics of one step."""
        write_trajectories(step_file(self.trajectories, step), groups, step)
        self.append_metrics(step, metrics)

    def write_eval(self, when: str, task_set: str, groups: Sequence[Group], step: int) -> Path:
        """The trajectories of an evaluation after ``step`` steps. Returns their file."""
        path = self.eval_file(when, task_set)
        write_trajectories(path, groups, step)
        return path

    def write_summary(
        self,
        before: Mapping[str, Summary],
        after: Mapping[str, Summary],
        steps: int,
        seconds: float,
    ) -> None:
        """summary.json, from held-out summaries by task set; the first set is the main one."""
        summary: dict[str, Any] = {
            "heldout_before": next(iter(before.values()), None),
            "heldout_after": next(iter(after.values()), None),
            "heldout": {
                name: {"before": before.get(name), "after": after.get(name)}
                for name in dict.fromkeys([*before, *after])
            },
        }
        summary |= {"steps": steps, "seconds": seconds, "seed": self.recipe.seed}
        summary |= {"recipe": self.recipe.model_dump(), "versions": self.versions()}
        atomic_write(self.path / "summary.json", _json(summary))

    def add_versions(self, more: Mapping[str, str]) -> None:
        """Further things that it runs on, known only once they have started."""
        if more:
            atomic_write(self.path / "versions.json", _json(self.versions() | dict(more)))

    def rewind(self, step: int) -> None:
        """Drops everything of this step and later ones, so that they can be made again."""
        remove_temporaries(self.path)
        drop_steps(self.trajectories, step)
        ends = [self.path / "summary.json", self.report, *self.path.glob("eval/after-*.jsonl")]
        for path in ends:
            path.unlink(missing_ok=True)
        kept = [row for row in _rows(self.path / "metrics.jsonl") if row["step"] < step]
        if (self.path / "metrics.jsonl").exists():
            atomic_write(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))

    def forget(self) -> None:
        """Takes back what ``create`` wrote, when nothing came of it: the folder can be used again."""
        for name in ("recipe.yaml", "versions.json"):
            (self.path / name).unlink(missing_ok=True)

    # Reading

    def metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl, each with its "step"; what was not finite is left out."""
        rows = _rows(self.path / "metrics.jsonl")
        return [{name: value for name, value in row.items() if value is not None} for row in rows]

    def summary(self) -> dict[str, Any] | None:
        """summary.json, or None of a run that has not finished."""
        summary: dict[str, Any] | None = _load(self.path / "summary.json")
        return summary

    def versions(self) -> dict[str, Any]:
        """What the run was begun on."""
        return _load(self.path / "versions.json") or {}

    # The lock's life

    def close(self) -> None:
        """Gives the folder free. Twice is fine."""
        if self._lock is not None:
            _release(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def default_run_dir(recipe_name: str, root: str | Path = "runs") -> Path:
    """The first free ``runs/<recipe>-<date>-<n>``; a recipe's path counts by its file's name."""
    name = re.sub(r"[^\w.-]+", "-", Path(recipe_name).name.removesuffix(".yaml").removesuffix(".yml"))
    stem = f"{name}-{time.strftime('%Y%m%d')}"
    n = 1
    while (Path(root) / f"{stem}-{n}").exists():
        n += 1
    return Path(root) / f"{stem}-{n}"


_held: set[int] = set()


def _close_in_child() -> None:
    """A forked worker that outlives us must not keep our folder locked."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _acquire(path: Path) -> int:
    """Locks a folder for this process. The lock goes with the process, however it dies."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; a run needs a folder, so choose another name")
    with saving(path):
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
        os.close(descriptor)
        raise UserError(
            f"{path} is in use by process {owner}. Wait for it or stop it and then use --resume, "
            "or choose another folder"
        ) from None
    except OSError as error:
        os.close(descriptor)
        raise UserError(
            f"cannot lock {path} ({error.strerror}). Choose a folder on another disk"
        ) from error
    _held.add(descriptor)
    return descriptor


def _release(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)


def _refuse_used(path: Path) -> None:
    names = sorted(p.name for p in path.iterdir() if p.name != _LOCK)
    if "summary.json" in names:
        raise UserError(
            f"{path} holds a finished run. Choose another folder, or use --resume with more steps "
            "to train it further"
        )
    if "recipe.yaml" in names:
        raise UserError(
            f"{path} holds a run that was begun. Use --resume to go on with it, or another folder"
        )
    if names:
        raise UserError(f"{path} is not empty ({', '.join(names[:3])}). Choose another folder")


def _runs_hint(path: Path) -> str:
    parent = path if path.is_dir() else path.parent
    runs = sorted(p.parent for p in parent.glob("*/recipe.yaml"))
    return f". Runs there: {', '.join(map(str, runs[-3:]))}" if runs else ""


def _append(path: Path, line: bytes) -> None:
    """One line in one write; what a full disk left of it is taken back."""
    with saving(path), open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the disk took only a part
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def _rows(path: Path) -> list[dict[str, Any]]:
    """A kill in the middle of a write leaves a last line without its end: it does not count."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). Restore it, or choose another folder") from error


def _load(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). Restore it, or remove it") from error


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
