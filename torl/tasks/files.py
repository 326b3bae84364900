"""Reads tasks from a file or a Hugging Face data set.

``load_file`` reads .jsonl, .json and .parquet; ``load_hub`` reads ``hf:owner/name[:split]``.
What the columns mean is in rows.py. Every fault of the input is one UserError that names the
place and the remedy.
"""

import difflib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torl.errors import UserError
from torl.tasks.rows import Row, read_row
from torl.types import Task

HUB_PREFIX = "hf:"
Rows = Iterator[tuple[str, Row]]  # each row with its place, "mawps.jsonl, line 3"


def load_file(path: str | Path) -> list[Task]:
    """Tasks of a .jsonl, .json or .parquet file; ids are "stem/number", counted from 0.

    All columns beside the problem and the answer are kept in ``Task.meta``.
    """
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(
            f"{path}: task files are {', '.join(READERS)}, not {path.suffix or 'without an extension'}; "
            "convert it, or give hf:owner/name for a data set of the hub"
        )
    if not path.is_file():
        raise UserError(_no_file(path))
    return _tasks(reader(path), path.stem, str(path))


def load_hub(source: str) -> list[Task]:
    """Tasks of ``hf:owner/name[/config][:split]``, or of a folder in its place; split: train."""
    name, _, split = source.removeprefix(HUB_PREFIX).partition(":")
    rows = _hub_rows(name, split or "train", source)
    return _tasks(rows, hub_name(source), source)


def hub_name(source: str) -> str:
    """ "gsm8k" of "hf:openai/gsm8k/main:test", and the last folder of a path."""
    name = source.removeprefix(HUB_PREFIX).partition(":")[0]
    return _config(name)[0].rpartition("/")[2]


def _config(name: str) -> tuple[str, str | None]:
    """Splits owner/name/config; a hub id has two parts, and a folder is not a hub id."""
    owner_name, _, config = name.rpartition("/")
    return (owner_name, config) if name.count("/") == 2 and not Path(name).is_dir() else (name, None)


def _tasks(rows: Rows, name: str, source: str) -> list[Task]:
    tasks = [_task(row, where, name, i) for i, (where, row) in enumerate(rows)]
    if not tasks:
        raise UserError(f"{source} holds no tasks; give it at least one row with a problem and an answer")
    return tasks


def _task(row: Row, where: str, name: str, number: int) -> Task:
    problem, answer, rest = read_row(row, where)
    # Trajectories are stored as JSON with their task, so dates and the like become text here.
    meta = json.loads(json.dumps(rest, default=str))
    kind = rest.get("kind") or rest.get("data_source") or name
    return Task(f"{name}/{number}", problem, answer, str(kind), meta)


def _no_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"no task file {path}: there is no folder {folder}"
    files = sorted(f.name for f in folder.iterdir() if f.suffix.lower() in READERS)
    near = difflib.get_close_matches(path.name, files, n=1)
    hint = f"did you mean {near[0]}?" if near else f"task files there: {', '.join(files[:8]) or 'none'}"
    return f"no task file {path}; {hint}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); convert it to UTF-8") from error


def _jsonl(path: Path) -> Rows:
    """One JSON object a line; empty lines are skipped. Not splitlines(): it cuts at U+2028."""
    for number, line in enumerate(_text(path).split("\n"), start=1):
        where = f"{path}, line {number}"
        if line.strip():
            yield where, _object(_parse(line, where), where)


def _json(path: Path) -> Rows:
    """A JSON list of objects."""
    data = _parse(_text(path) or "[]", str(path))
    if not isinstance(data, list):
        raise UserError(f"{path}: a .json task file is a list of objects, not {_name(data)}")
    for number, row in enumerate(data, start=1):
        where = f"{path}, entry {number}"
        yield where, _object(row, where)


def _parquet(path: Path) -> Rows:
    import pyarrow.parquet  # only when it is used: it takes a moment to import

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a readable Parquet file ({error}); write it anew") from error
    for number, row in enumerate(table.to_pylist(), start=1):
        yield f"{path}, row {number}", row


READERS: dict[str, Callable[[Path], Rows]] = {".jsonl": _jsonl, ".json": _json, ".parquet": _parquet}


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        raise UserError(
            f"{where}: not valid JSON ({error.msg} at {place}); correct or delete it"
        ) from error


def _object(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise UserError(
            f'{where}: expected an object like {{"problem": ..., "answer": ...}}, got {_name(value)}'
        )
    return value


def _name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _hub_rows(name: str, split: str, source: str) -> Rows:
    data = _hub_data(name, split, source)
    for number, row in enumerate(data, start=1):
        yield f"{source}, row {number}", dict(row)


def _hub_data(name: str, split: str, source: str) -> Any:
    import datasets  # takes seconds to import, so only when a data set is asked for

    try:
        if (Path(name) / "dataset_dict.json").is_file():
            return datasets.load_from_disk(name)[split]
        if (Path(name) / "state.json").is_file():
            return datasets.load_from_disk(name)
        path, config = _config(name)
        return datasets.load_dataset(path, config, split=split)
    except Exception as error:  # the library raises many kinds: network, name, split, format
        raise UserError(
            f"cannot load {source}: {type(error).__name__}: {error}. The form is "
            "hf:owner/name[/config][:split]; check the spelling and the network, or download "
            "the data and give the path of its .jsonl, .json or .parquet file"
        ) from error
