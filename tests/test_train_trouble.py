"""What training refuses, and what it keeps when something goes wrong."""

import errno
import json
import os
import resource
from pathlib import Path

import pytest

from tests.train_kit import (
    TASKS,
    assert_equal_runs,
    go,
    make_recipe,
    parts_of,
    roll,
)
from torl.errors import UserError
from torl.learner.batch import Batch, sample_of
from torl.learner.checkpoint import read_state, save_checkpoint
from torl.learner.local import LocalLearner
from torl.run import Run
from torl.tasks import TaskSets

pytestmark = pytest.mark.usefixtures("one_thread")


# Refusals


def test_a_folder_is_used_once(finished: Run) -> None:
    with pytest.raises(UserError, match="holds a finished run"):
        go(finished.recipe, finished.path)
    with Run.open(finished.path, lock=True), pytest.raises(UserError, match="in use by process"):
        go(finished.recipe, finished.path, resume=True)


def test_a_changed_recipe_is_refused_with_its_differences(finished: Run) -> None:
    other = finished.recipe.model_copy(deep=True)
    other.learner.lr, other.seed, other.rewards = 1.0, 7, {"letter_a": 2.0}
    other.steps, other.checkpoint.keep = 60, 3  # these may change
    with pytest.raises(UserError) as caught:
        go(other, finished.path, resume=True)
    message = str(caught.value)
    for part in ("learner.lr (0.003, now 1.0)", "seed (0, now 7)", "rewards.letter_a (1.0, now 2.0)"):
        assert part in message
    assert "keep (" not in message
    assert "steps (" not in message
    assert finished.summary() is not None
    Run.open(finished.path, lock=True).close()  # and it is free again


def test_resume_needs_a_run(model: str, template: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no recipe.yaml"):
        go(make_recipe(model, template), tmp_path / "nothing", resume=True)


def test_a_mistake_before_the_first_step_leaves_the_folder_usable(template: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model folder"):
        go(make_recipe("./nowhere", template), tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [".lock"]
    with pytest.raises(UserError, match="no model folder"):
        go(make_recipe("./nowhere", template), tmp_path / "run")


def test_a_mistake_while_resuming_destroys_nothing(finished: Run) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.path.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match="cannot be a tool"):
        go(finished.recipe, finished.path, tool=lambda: None, resume=True)
    ours = {finished.path / ".lock", finished.path / "recipe.yaml"}
    assert {p: t for p, t in before.items() if p not in ours} == {
        p: p.stat().st_mtime_ns for p in before if p not in ours
    }


def test_greedy_training_is_refused(model: str, template: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to learn"):
        go(make_recipe(model, template, rollout={"temperature": 0.0}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_few_tasks_are_refused(model: str, template: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="prompts_per_step=3 is more than the 2 training tasks"):
        go(make_recipe(model, template), tmp_path / "run", tasks=TaskSets(TASKS[:2], {}))


# A full disk


def test_a_full_disk_while_saving_keeps_the_older_checkpoint(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, saves = LocalLearner.save, iter(range(10))

    def save(self: LocalLearner, folder: Path) -> None:
        if next(saves) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(self, folder)

    monkeypatch.setattr(LocalLearner, "save", save)
    with pytest.raises(UserError, match=r"no space left.*step-00004.*--resume"):
        go(finished.recipe, tmp_path / "run")
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step-00002"]
    assert_equal_runs(go(finished.recipe, tmp_path / "run", resume=True), finished, 6)


@pytest.mark.parametrize("kilobytes", [20, 250])
def test_a_disk_that_is_really_full(model: str, template: Path, tmp_path: Path, kilobytes: int) -> None:
    """A limit on file size: in the model's file, then in the learner's. safetensors and
    transformers report it in their own ways."""
    with parts_of(model, template) as parts:
        recipe = make_recipe(model, template)
        learner = LocalLearner(parts.model, recipe.algorithm, recipe.learner)
        learner.update(Batch([sample_of(t) for t in roll(parts, 0)]))
        size = (Path(model) / "model.safetensors").stat().st_size
        assert 20_000 < size < 250_000 < 3 * size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1000, hard))
        try:
            with pytest.raises(UserError, match="no space left on the device"):
                save_checkpoint(tmp_path, learner, parts.tokenizer, step=1, state={}, keep=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_named(finished: Run, tmp_path: Path) -> None:
    folder = tmp_path / "step-00003"
    folder.mkdir()
    (folder / "state.json").write_text('{"step": 3')
    with pytest.raises(UserError, match=r"damaged.*go on from the one before"):
        read_state(folder)
    assert json.loads((finished.checkpoints / "step-00006/state.json").read_text())["updates"] == 6
