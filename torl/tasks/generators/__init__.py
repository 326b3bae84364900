"""The built-in tasks: generated, seeded, and nothing to download.

``generate`` gives tasks of the kinds in ``KINDS``. Training and held-out tasks are disjoint
by their parameters: a hash of the kind and its numbers decides the side, whatever the
wording. Answers are computed from the parameters, never by running code.
"""

import random
from collections.abc import Iterator

from torl.errors import UserError
from torl.imports import nearest
from torl.tasks.generators import arithmetic, counting, measures, money, numbers, stories
from torl.tasks.generators.base import (
    KINDS,
    TEST_SHARE,
    Dice,
    Kind,
    Problem,
    Split,
    draw_words,
    kind,
    side,
)
from torl.types import Task

FAMILIES = (arithmetic, numbers, counting, measures, money, stories)
"""The modules that define the built-in kinds; importing them fills KINDS."""

MAX_MISSES = 3000
"""Draws in a row without a new task, after which a kind counts as used up."""


def generate(
    kinds: list[str] | None, difficulty: float, n: int, seed: int, split: Split = "train"
) -> list[Task]:
    """Gives ``n`` different tasks, the kinds in turn, the same ones on every machine.

    Args:
        kinds: names out of KINDS (None: all of them).
        difficulty: 0 is easiest, 1 hardest.
        n: how many tasks; a larger n continues the sequence of a smaller one.
        seed: decides parameters, wording, names.
        split: "train" or "test"; no parameters are on both sides, whatever the seeds.
    """
    chosen = _choose(kinds)
    _check(difficulty, n, split)
    streams = [_stream(k, difficulty, seed, split) for k in chosen]
    tasks: list[Task] = []
    for i in range(n):
        task = next(streams[i % len(streams)], None)
        if task is None:
            raise UserError(_used_up(chosen[i % len(chosen)], i // len(chosen), difficulty, split))
        tasks.append(task)
    return tasks


def _choose(kinds: list[str] | None) -> list[Kind]:
    names = list(KINDS) if kinds is None else kinds
    if not names:
        raise UserError(
            f"tasks.kinds is empty; leave it out for all kinds, or choose from {', '.join(KINDS)}"
        )
    for name in names:
        if name not in KINDS:
            hint = nearest(name, list(KINDS))
            raise UserError(f"tasks.kinds: no kind {name!r}.{hint} There are: {', '.join(KINDS)}")
    return [KINDS[name] for name in dict.fromkeys(names)]


def _check(difficulty: float, n: int, split: str) -> None:
    if not 0.0 <= difficulty <= 1.0:
        raise UserError(f"difficulty {difficulty} is not between 0 (easiest) and 1 (hardest)")
    if n < 1:
        raise UserError(f"{n} tasks cannot be generated; ask for at least 1")
    if split not in ("train", "test"):
        raise UserError(f"split {split!r} is neither 'train' nor 'test'")


def _stream(kind: Kind, difficulty: float, seed: int, split: Split) -> Iterator[Task]:
    """All tasks of one kind, no parameters twice in one wording; ends when none are left."""
    rng = random.Random(f"{kind.name}/{difficulty}/{seed}/{split}")
    dice = Dice(rng, difficulty)
    seen: set[str] = set()
    misses = 0
    while misses < MAX_MISSES:
        problem = kind.make(dice)
        phrase = dice.pick(problem.phrases)
        key = f"{problem.params} {phrase}"
        if side(kind.name, problem.params) != split or key in seen:
            misses += 1
            continue
        misses = 0
        yield _task(kind, problem, phrase, f"{kind.name}/{split}/{len(seen)}", rng)
        seen.add(key)


def _task(kind: Kind, problem: Problem, phrase: str, task_id: str, rng: random.Random) -> Task:
    text = phrase.format(**problem.params | problem.text | draw_words(rng))
    meta = {"params": problem.params, "phrase": phrase}
    return Task(task_id, text, problem.answer, kind.name, meta)


def _used_up(kind: Kind, found: int, difficulty: float, split: str) -> str:
    return (
        f"kind {kind.name} has only {found} different {split} tasks at difficulty {difficulty}; "
        "lower tasks.size (or tasks.test_limit), raise tasks.difficulty, or choose more tasks.kinds"
    )


__all__ = ["KINDS", "TEST_SHARE", "Dice", "Kind", "Problem", "Split", "generate", "kind", "side"]
