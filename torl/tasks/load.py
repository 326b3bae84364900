"""The tasks of a recipe: what trains, what is held out, never a problem in both."""

import random
import re
from dataclasses import dataclass
from pathlib import Path

from torl.config import Recipe, Tasks
from torl.errors import UserError
from torl.tasks.files import HUB_PREFIX, hub_name, load_file, load_hub
from torl.tasks.generators import Split, generate
from torl.types import Task

BUILTIN = "builtin"

BUILTIN_TEST_SIZE = 256
"""Built-in held-out tasks when ``tasks.test_limit`` does not say."""


@dataclass(frozen=True)
class TaskSets:
    """Training tasks, and held-out tasks by the name of their source ("mawps", "builtin")."""

    train: list[Task]
    test: dict[str, list[Task]]
    duplicates: int = 0  # training tasks left out because their problem is held out


def load_tasks(recipe: Recipe) -> TaskSets:
    """Loads ``recipe.tasks``. Every choice depends on ``tasks.split_seed`` alone.

    With ``tasks.holdout`` that many tasks of ``tasks.train`` are held out and measured as one
    more test set under its name; ``tasks.test`` may, but need not, list the file again.
    """
    tasks = recipe.tasks
    held, train = _hold_out(tasks)
    sources = [s for s in _test_sources(tasks) if s == BUILTIN or not same_source(s, tasks.train)]
    test = _by_name(sources, tasks, {source_name(tasks.train): held} if held else {})
    rest = _without(train, [task for held_out in test.values() for task in held_out])
    if not rest:
        raise UserError(f"all {len(train)} problems of tasks.train={tasks.train} are held out; give others")
    chosen = _choose(rest, tasks.limit, f"train/{tasks.split_seed}")
    return TaskSets(chosen, _limited(test, tasks), duplicates=len(train) - len(rest))


def load_held_out(sources: list[str], tasks: Tasks) -> dict[str, list[Task]]:
    """Held-out tasks alone, by the name of their source: what a run trained on need not be here."""
    return _limited(_by_name(list(dict.fromkeys(sources)), tasks, {}), tasks)


def _by_name(sources: list[str], tasks: Tasks, test: dict[str, list[Task]]) -> dict[str, list[Task]]:
    """``test`` and, beside it, each source whole."""
    for source in sources:
        test[_free_name(source_name(source), test)] = load_source(source, tasks, "test")
    return test


def _limited(test: dict[str, list[Task]], tasks: Tasks) -> dict[str, list[Task]]:
    return {n: _choose(t, tasks.test_limit, f"test/{n}/{tasks.split_seed}") for n, t in test.items()}


def load_source(source: str, tasks: Tasks, split: Split = "test") -> list[Task]:
    """All tasks of one source: "builtin", a path, or hf:owner/name[:split].

    Only the built-in tasks look at ``tasks`` and ``split``; a file is given whole.
    """
    if source == BUILTIN:
        train_size = min(tasks.size, tasks.limit or tasks.size)
        n = train_size if split == "train" else tasks.test_limit or BUILTIN_TEST_SIZE
        return generate(tasks.kinds, tasks.difficulty, n, tasks.split_seed, split)
    return load_hub(source) if source.startswith(HUB_PREFIX) else load_file(source)


def source_name(source: str) -> str:
    """The name of a source in tables and metrics: "data/mawps.jsonl" is "mawps"."""
    return hub_name(source) if source.startswith(HUB_PREFIX) else Path(source).stem


def same_source(a: str, b: str) -> bool:
    """Whether two sources are one file, however their paths are written."""
    if a.startswith(HUB_PREFIX) or b.startswith(HUB_PREFIX) or BUILTIN in (a, b):
        return a == b
    return Path(a).resolve() == Path(b).resolve()


def normalised(problem: str) -> str:
    """A problem's text for comparison: no case, no spacing."""
    return " ".join(re.findall(r"\w+|[^\w\s]", problem.casefold()))


def _test_sources(tasks: Tasks) -> list[str]:
    return [tasks.test] if isinstance(tasks.test, str) else list(dict.fromkeys(tasks.test))


def _hold_out(tasks: Tasks) -> tuple[list[Task], list[Task]]:
    """Splits the training source into held-out tasks (none without holdout) and the rest."""
    if tasks.train == BUILTIN:
        if tasks.holdout:
            raise UserError(
                f"tasks.holdout={tasks.holdout} splits a file, but tasks.train is builtin, which has "
                "held-out tasks of its own; set tasks.holdout=0 and tasks.test=builtin"
            )
        return [], load_source(BUILTIN, tasks, "train")
    if not tasks.holdout and any(same_source(s, tasks.train) for s in _test_sources(tasks)):
        raise UserError(
            f"tasks.test is the file of tasks.train ({tasks.train}): it would be measured on what it "
            "trained on. Set tasks.holdout, e.g. tasks.holdout=128, or give another test file"
        )
    everything = load_source(tasks.train, tasks, "train")
    if tasks.holdout >= len(everything):
        raise UserError(
            f"tasks.holdout={tasks.holdout} leaves nothing to train on: {tasks.train} has "
            f"{len(everything)} tasks; lower it below that"
        )
    rng = random.Random(f"holdout/{tasks.split_seed}")
    chosen = set(rng.sample(range(len(everything)), tasks.holdout))
    held = [task for i, task in enumerate(everything) if i in chosen]
    return held, [task for i, task in enumerate(everything) if i not in chosen]


def _without(train: list[Task], held_out: list[Task]) -> list[Task]:
    """The training tasks whose problem is not held out, even before test_limit."""
    taken = {normalised(task.problem) for task in held_out}
    return [task for task in train if normalised(task.problem) not in taken]


def _choose(tasks: list[Task], n: int | None, key: str) -> list[Task]:
    """A seeded choice of at most n tasks, in their order."""
    if n is None or n >= len(tasks):
        return tasks
    chosen = sorted(random.Random(key).sample(range(len(tasks)), n))
    return [tasks[i] for i in chosen]


def _free_name(name: str, taken: dict[str, list[Task]]) -> str:
    """The name, numbered when two files of different folders share it."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free


__all__ = [
    "TaskSets",
    "load_file",
    "load_held_out",
    "load_hub",
    "load_source",
    "load_tasks",
    "same_source",
    "source_name",
]
