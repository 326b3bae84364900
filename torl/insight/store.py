"""Trajectories as JSON lines, without loss: every id, log-probability and string comes back equal.

A line is ``{"step": 12, "id": "add/7#0", ...the fields of Trajectory}``. Files are UTF-8; a
lone surrogate (not Unicode text, but a tool can print one) is kept as its three bytes, so
read with ``errors="surrogatepass"`` where that matters. What JSON does not know in
``Task.meta`` (a tuple, an array, a date) comes back as a list or as its text.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from torl.errors import UserError
from torl.insight.files import atomic_write
from torl.types import Group, StopReason, Task, ToolCall, ToolResult, Trajectory, Turn


def step_file(folder: Path, step: int) -> Path:
    """Where the trajectories of a step lie: ``step-00012.jsonl``."""
    return folder / f"step-{step:05d}.jsonl"


def write_trajectories(path: Path, groups: Sequence[Group], step: int) -> None:
    """Writes the trajectories of a step, or of an evaluation, as one new file."""
    trajectories = (t for group in groups for t in group.trajectories)
    atomic_write(path, _lines(trajectories, step))


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a file, or of all steps of a folder in order.

    Raises UserError naming the file and the line that cannot be read.
    """
    files = sorted(path.glob("step-*.jsonl"), key=_step_of) if path.is_dir() else [path]
    for file in files:
        yield from _read_file(file)


def drop_steps(folder: Path, from_step: int) -> None:
    """Removes the files of this step and of all later ones: they are about to be made again."""
    for path in folder.glob("step-*.jsonl"):
        if _step_of(path) >= from_step:
            path.unlink()


def _step_of(path: Path) -> int:
    """Past step 99999 names no longer sort as text, so order goes by the number."""
    digits = path.stem.removeprefix("step-")
    return int(digits) if digits.isdecimal() else -1


def _lines(trajectories: Iterable[Trajectory], step: int) -> Iterator[bytes]:
    for trajectory in trajectories:
        row = {"step": step, "id": trajectory.id, **vars(trajectory)}
        # Raw rather than \u escapes: the decoder would merge two escaped surrogates into one character.
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=_plain)
        yield text.encode("utf-8", "surrogatepass") + b"\n"


def _plain(value: Any) -> Any:
    """What json cannot write itself. (dataclasses.asdict would copy every id of every list.)"""
    if is_dataclass(value) and not isinstance(value, type):
        return vars(value)
    if hasattr(value, "tolist"):  # numpy and torch
        return value.tolist()
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else str(value)


def _read_file(path: Path) -> Iterator[Trajectory]:
    # Binary: text mode would also cut lines at characters that stand raw inside strings.
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                trajectory = _trajectory(json.loads(line.decode("utf-8", "surrogatepass")))
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(f"{path}, line {number}: not a trajectory of torl ({error})") from error
            yield trajectory


def _trajectory(row: dict[str, Any]) -> Trajectory:
    del row["step"], row["id"]
    row["task"] = Task(**row["task"])
    row["turns"] = [_turn(turn) for turn in row["turns"]]
    row["stop_reason"] = StopReason(row["stop_reason"])
    return Trajectory(**row)


def _turn(row: dict[str, Any]) -> Turn:
    row["stop_reason"] = StopReason(row["stop_reason"])
    row["call"] = ToolCall(**row["call"]) if row["call"] else None
    row["result"] = ToolResult(**row["result"]) if row["result"] else None
    return Turn(**row)
