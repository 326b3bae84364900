"""The store of trajectories: every id and every string comes back equal."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torl.errors import UserError
from torl.insight.store import drop_steps, read_trajectories, step_file, write_trajectories
from torl.types import Completion, Group, StopReason, Task, ToolCall, ToolResult, Trajectory

TASK = Task("add/7", "What is 12 * 31?", "372")
RIGHT = Trajectory(TASK, sample=0, prompt_ids=[1], ids=[7, 8], loss_mask=[1, 1], correct=True)

ANY_TEXT = st.text(alphabet=st.characters(codec=None, categories=None), max_size=20)
NASTY = ANY_TEXT | st.sampled_from(
    ["\0", "\ud800", "\ud83d\ude00", "\u2028\u2029\x85", "\r\n", "\\ud83d", '"']
)
FLOATS = st.floats(allow_nan=False)
IDS = st.lists(st.integers(0, 2**31), max_size=5)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    meta = st.dictionaries(NASTY, st.none() | st.booleans() | FLOATS | NASTY | st.lists(NASTY, max_size=2))
    task = Task(draw(NASTY), draw(NASTY), draw(NASTY), draw(NASTY), draw(meta))
    trajectory = Trajectory(task, draw(st.integers(0, 99)), draw(IDS))
    for _ in range(draw(st.integers(0, 3))):
        ids = draw(IDS)
        completion = Completion(ids, [draw(FLOATS) for _ in ids], draw(st.sampled_from(StopReason)))
        turn = trajectory.append_completion(completion, draw(NASTY))
        if draw(st.booleans()):
            turn.call = ToolCall(draw(NASTY), draw(NASTY))
            turn.result = ToolResult(
                draw(NASTY), draw(NASTY), draw(FLOATS), draw(FLOATS), draw(st.booleans())
            )
            trajectory.append_observation(draw(IDS), draw(NASTY))
    trajectory.stop_reason = draw(st.sampled_from(StopReason))
    trajectory.reward, trajectory.correct = draw(st.none() | FLOATS), draw(st.none() | st.booleans())
    trajectory.reward_parts = draw(st.dictionaries(NASTY, FLOATS, max_size=2))
    trajectory.answer = draw(st.none() | NASTY)
    return trajectory


@given(st.lists(trajectories(), max_size=3))
def test_trajectories_come_back_equal(
    tmp_path_factory: pytest.TempPathFactory, ts: list[Trajectory]
) -> None:
    path = tmp_path_factory.mktemp("store") / "x.jsonl"
    write_trajectories(path, [Group(t.task, [t]) for t in ts], step=3)
    back = list(read_trajectories(path))
    assert back == ts
    assert all(type(b.stop_reason) is StopReason for b in back)


def test_a_line_names_its_step_and_is_readable(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "x.jsonl", [Group(TASK, [RIGHT])], step=12)
    row = json.loads((tmp_path / "x.jsonl").read_text())
    assert (row["step"], row["id"], row["stop_reason"]) == (12, "add/7#0", "length")
    assert row["ids"] == RIGHT.ids


def test_numbers_that_are_not_finite_survive(tmp_path: Path) -> None:
    trajectory = Trajectory(TASK, 0, [1], reward=-math.inf, sampler_logprobs=[math.nan])
    write_trajectories(tmp_path / "x.jsonl", [Group(TASK, [trajectory])], step=0)
    (back,) = read_trajectories(tmp_path / "x.jsonl")
    assert back.reward == -math.inf
    assert math.isnan(back.sampler_logprobs[0])


def test_meta_that_json_does_not_know_does_not_stop_a_run(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    meta = {"a": numpy.array([1, 2]), "b": (1, 2), "c": {"y", "x"}, "d": Path("p")}
    trajectory = Trajectory(Task("t", "p", "a", meta=meta), 0, [1])
    write_trajectories(tmp_path / "x.jsonl", [Group(trajectory.task, [trajectory])], step=0)
    (back,) = read_trajectories(tmp_path / "x.jsonl")
    assert back.task.meta == {"a": [1, 2], "b": [1, 2], "c": ["x", "y"], "d": "p"}


def test_steps_are_read_in_order_and_dropped_from_one_on(tmp_path: Path) -> None:
    for step in (2, 100_000, 0, 99_999):
        task = Task(str(step), "", "")
        write_trajectories(step_file(tmp_path, step), [Group(task, [Trajectory(task, 0, [])])], step)
    assert step_file(tmp_path, 12).name == "step-00012.jsonl"
    assert [t.task.id for t in read_trajectories(tmp_path)] == ["0", "2", "99999", "100000"]
    drop_steps(tmp_path, 99_999)
    assert [t.task.id for t in read_trajectories(tmp_path)] == ["0", "2"]
    drop_steps(tmp_path / "missing", 0)


@pytest.mark.parametrize("line", ["{oops", "[]", '{"step": 1}', '{"step": 1, "id": "a", "x": 2}'])
def test_a_line_that_is_no_trajectory_is_named(tmp_path: Path, line: str) -> None:
    write_trajectories(tmp_path / "x.jsonl", [Group(TASK, [RIGHT])], step=0)
    with open(tmp_path / "x.jsonl", "a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=r"x\.jsonl, line 2: not a trajectory"):
        list(read_trajectories(tmp_path / "x.jsonl"))
