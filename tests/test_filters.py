"""What of a step trains: masks, and the choice from an oversampled group."""

import asyncio
import zlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_kit import calling, trajectory

from tests.train_kit import go, make_model, make_recipe, metrics, trajectories
from torl.algorithms import settings as names
from torl.algorithms.filters import MASKS, faults, resample_on_correct
from torl.config import Filters, Recipe
from torl.selection import Chosen, Selection
from torl.types import Group, StopReason, Task, ToolResult, Trajectory

CODE = calling("print(6 * 7)", "Let me compute.\n")
CLEAN = trajectory((CODE, "42"), r"So it is \boxed{42}.")
ERROR = ToolResult("ZeroDivisionError", status="error")


def test_the_recipe_knows_the_names() -> None:
    assert tuple(MASKS) == names.MASKS
    with pytest.raises(ValueError, match="Did you mean void_turn"):
        Filters(mask=["void_turns"])


@pytest.mark.parametrize(
    ("turns", "void"),
    [
        ([(CODE, "42"), r"\boxed{42}"], False),
        (["Well, it is 42."], True),
        ([(CODE, "42"), "So it is 42."], True),  # any turn counts
        ([r"\boxed{42}"], False),
        (["```python\nprint(1)\n```"], False),  # code, though it was never run
        ([(CODE, "42"), "```output\n\\boxed{1}\n```\n"], True),  # a box that the prose does not have
    ],
)
def test_void_turns(turns: list[str], void: bool) -> None:
    assert MASKS["void_turn"](trajectory(*turns)) is void  # type: ignore[arg-type]


def test_invented_outputs_and_repetition() -> None:
    invented = trajectory(r"\boxed{42}")
    invented.invented_outputs = 1
    loop = trajectory("one two three four five six seven eight nine ten " * 8 + r"\boxed{42}")
    assert [MASKS["invented_output"](t) for t in (CLEAN, invented, loop)] == [False, True, False]
    assert [MASKS["repetition"](t) for t in (CLEAN, invented, loop)] == [False, False, True]


def test_a_masked_trajectory_has_no_token_that_trains_and_stays_in_the_batch() -> None:
    recipe = Recipe(filters=Filters(mask=["void_turn", "repetition"]))
    good, void, cut = (Trajectory(CLEAN.task, n, [1], ids=[5, 6], loss_mask=[1, 1]) for n in range(3))
    good.turns, void.turns, cut.turns = CLEAN.turns, trajectory("Well.").turns, CLEAN.turns
    for one, why in ((good, StopReason.END), (void, StopReason.END), (cut, StopReason.LENGTH)):
        one.stop_reason = why
        one.sampler_logprobs = [-1.0, -1.0]
    batch, shares = Selection(recipe).batch([good, void, cut])
    assert [s.loss_mask for s in batch.samples] == [[1, 1], [0, 0], [1, 1]]
    assert shares == {"filters/void_turn_ratio": pytest.approx(1 / 3), "filters/repetition_ratio": 0.0}
    plain = Recipe()
    plain.rollout.train_truncated = False
    batch, shares = Selection(plain).batch([good, void, cut])
    assert [s.loss_mask for s in batch.samples] == [[1, 1], [1, 1], [0, 0]]
    assert shares == {}


def group_of(right: int, wrong: int, faulty: int = 0) -> Group:
    """The first ``faulty`` of the right ones had every call fail."""
    members = []
    for n in range(right + wrong):
        one = trajectory((CODE, ERROR if n < faulty else "42"), r"\boxed{42}")
        one.sample, one.correct, one.reward = n, n < right, float(n < right)
        members.append(one)
    return Group(Task("t", "?", "42"), members)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(2, 10), st.text(max_size=3))
def test_what_is_kept_is_in_proportion_and_both_kinds_remain(
    right: int, wrong: int, keep: int, seed: str
) -> None:
    group = group_of(right, wrong)
    kept = resample_on_correct(group, keep, seed)
    assert len(kept.trajectories) == min(keep, right + wrong)
    found = sum(bool(t.correct) for t in kept.trajectories)
    assert (found > 0, found < len(kept.trajectories)) == (right > 0, wrong > 0)
    if right + wrong > keep:
        assert abs(found - keep * right / (right + wrong)) <= 1
    numbers = [t.sample for t in kept.trajectories]
    assert numbers == sorted(numbers)
    again = resample_on_correct(group, keep, seed)
    assert [t.sample for t in again.trajectories] == numbers


def test_clean_successes_are_preferred_and_failures_are_not_chosen() -> None:
    """Four faulty and four clean successes, of which four stay: the faulty ones weigh 1 / 1.1, the clean 1
    / 0.1."""
    kept: Counter[int] = Counter()
    for n in range(300):
        chosen = resample_on_correct(group_of(8, 8, faulty=4), 8, str(n))
        kept.update(t.sample for t in chosen.trajectories)
    faulty, clean = (sum(kept[n] for n in some) / 300 for some in (range(4), range(4, 8)))
    assert faulty + clean == 4
    assert clean > 3
    assert all(100 < kept[n] < 200 for n in range(8, 16))  # each failure about half of the time


def test_faults() -> None:
    assert faults(CLEAN) == 0
    assert faults(trajectory(r"\boxed{42}")) == 0.5
    assert faults(trajectory((CODE, ERROR), (CODE, "42"), r"\boxed{42}")) == 0.5
    assert faults(trajectory((CODE, "42"), "User: and now?\n" + r"\boxed{42}")) == 1


def groups_of(*signals: bool) -> list[Group]:
    return [group_of(2, 2) if signal else group_of(4, 0) for signal in signals]


def gather(batches: list[list[Group]], draws: int, number: int = 5) -> tuple[Chosen, list[int]]:
    asked = []

    async def play(n: int) -> list[Group]:
        asked.append(n)
        return batches[n - number]

    recipe = Recipe(prompts_per_step=2, group_size=4, filters=Filters(draws=draws))
    return asyncio.run(Selection(recipe).gather(play, number)), asked


@pytest.mark.parametrize(
    ("batches", "draws", "drawn", "kept"),
    [
        ([[True, False], [True, True]], 1, 1, 2),  # off: what came is kept
        ([[True, True], [True, True]], 3, 1, 2),  # enough at once
        ([[True, False], [False, False], [True, True]], 3, 3, 2),  # until there is enough, and no more
        ([[True, False], [False, False], [True, True]], 2, 2, 1),  # bounded
        ([[False, False], [False, False]], 2, 2, 2),  # nothing at all: the last, so that the step says so
    ],
)
def test_batches_are_drawn_until_enough_groups_have_signal(
    batches: list[list[bool]], draws: int, drawn: int, kept: int
) -> None:
    chosen, asked = gather([groups_of(*signals) for signals in batches], draws)
    assert asked == list(range(5, 5 + drawn))
    assert (len(chosen.kept), chosen.draws, len(chosen.played)) == (kept, drawn, 2 * drawn)
    assert chosen.metrics() == {"filters/draws": drawn, "filters/groups_left_out": 2 * drawn - kept}
    if draws > 1 and any(any(signals) for signals in batches):
        assert all(len(set(group.rewards)) > 1 for group in chosen.kept)


def test_a_resumed_run_draws_on_where_it_stopped(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")

    def recipe_of(steps: int) -> Recipe:
        return make_recipe(
            model,
            tmp_path / "template.txt",
            steps=steps,
            filters={"draws": 2},
            rewards={"mostly_equal": 1.0},
        )

    whole = go(recipe_of(4), tmp_path / "whole", rewards=[mostly_equal])
    assert any(line["filters/draws"] == 2 for line in metrics(whole)[:2])
    go(recipe_of(2), tmp_path / "parts", rewards=[mostly_equal])
    parts = go(recipe_of(4), tmp_path / "parts", rewards=[mostly_equal], resume=True)
    assert metrics(parts) == metrics(whole)


def mostly_equal(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
    """Differs within the groups of some tasks alone."""
    return float(len(trajectory.ids) % 2 if zlib.crc32(trajectory.task.id.encode()) % 3 == 0 else 0)


def test_a_run_with_all_of_them(tmp_path: Path) -> None:
    recipe = make_recipe(
        make_model(tmp_path / "model"),
        tmp_path / "template.txt",
        steps=2,
        filters={"mask": list(MASKS), "oversample": 2},
    )
    run = go(recipe, tmp_path / "run")
    for line in metrics(run):
        assert {f"filters/{name}_ratio" for name in MASKS} <= line.keys()
        assert line["filters/void_turn_ratio"] > 0.9  # a random model boxes nothing
        assert line["learner/trained_tokens"] < 400
    for path in sorted((run.path / "trajectories").iterdir()):
        assert len(trajectories(path)) == 3 * 4
