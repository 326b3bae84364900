"""Killed, interrupted and stopped runs, resumed, against one that nothing disturbed."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.train_kit import (
    assert_equal_runs,
    dawdle,
    echo,
    go,
    metrics,
    trajectories,
)
from torl.config import Recipe
from torl.learner.checkpoint import newest_checkpoint, read_state
from torl.run import Run
from torl.samplers.embedded.engine import EmbeddedSampler

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parent.parent


@contextmanager
def child(recipe: Recipe, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A process that trains."""
    path = folder.parent / f"{folder.name}.json"
    path.write_text(recipe.model_dump_json())
    command = [sys.executable, "-m", "tests.train_kit", str(folder), str(path), *options]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_steps(process: subprocess.Popen[str], folder: Path, steps: int) -> None:
    """Until that many steps stand in the metrics."""
    until = time.monotonic() + 60
    path = folder / "metrics.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < steps:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.002)


def test_killed_in_a_checkpoint_then_at_a_random_moment(finished: Run, tmp_path: Path) -> None:
    """SIGKILL between the files of the second checkpoint, again while going on, then to the end."""
    folder = tmp_path / "run"
    with child(finished.recipe, folder, "--die-in-checkpoint", "2") as process:
        assert process.wait(60) == -signal.SIGKILL
    left = sorted(p.name for p in (folder / "checkpoints").iterdir())
    assert left == [".step-00004.tmp", "step-00002"]
    with child(finished.recipe, folder, "--resume") as process:
        wait_for_steps(process, folder, 3)
        time.sleep(random.uniform(0, 0.15))
        process.kill()
        process.wait(60)
    run = go(finished.recipe, folder, tool=dawdle, resume=True)
    assert_equal_runs(run, finished, 6)
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["step-00006"]


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(6))
def test_killed_at_a_random_moment(finished: Run, tmp_path: Path, attempt: int) -> None:
    folder = tmp_path / "run"
    for n in range(2):
        with child(finished.recipe, folder, *(["--resume"] if n else [])) as process:
            wait_for_steps(process, folder, attempt % 5)
            time.sleep(random.uniform(0, 0.4))
            process.kill()
            process.wait(60)
    assert_equal_runs(go(finished.recipe, folder, resume=True), finished, 6)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_asked_to_stop_it_finishes_the_step_and_saves(
    finished: Run, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    with child(finished.recipe, folder) as process:
        wait_for_steps(process, folder, 1)
        process.send_signal(number)
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert "Finishing this step, then saving" in output
    newest = newest_checkpoint(folder / "checkpoints")
    assert newest is not None
    done = read_state(newest)["step"]
    run = Run.open(folder)
    assert len(metrics(run)) == done < 6, "it stopped before its end"
    assert run.summary() is None
    assert run.report.is_file()
    assert_equal_runs(go(finished.recipe, folder, resume=True), finished, 6)


def test_asked_twice_it_stops_at_once(finished: Run, tmp_path: Path) -> None:
    """In the middle of a step: what was saved before is whole, and the lock is free."""
    passes = iter(range(10_000))
    original = EmbeddedSampler._pass

    def interrupting(self: Any, running: Any) -> Any:
        if next(passes) in (150, 151):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        return original(self, running)

    before = signal.getsignal(signal.SIGINT)
    with mock.patch.object(EmbeddedSampler, "_pass", interrupting), pytest.raises(KeyboardInterrupt):
        go(finished.recipe, tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is before
    assert_equal_runs(go(finished.recipe, tmp_path / "run", resume=True), finished, 6)


def test_stopped_before_the_first_step_it_still_measures_before(finished: Run, tmp_path: Path) -> None:
    """Ctrl-C while the model loads: a checkpoint of step 0, and a resumed run misses nothing."""

    class Stopped(EmbeddedSampler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGINT)

    with mock.patch("torl.parts.EmbeddedSampler", Stopped):
        run = go(finished.recipe, tmp_path / "run")
    assert [p.name for p in run.checkpoints.iterdir()] == ["step-00000"]
    assert not (run.path / "eval").exists()
    assert_equal_runs(go(finished.recipe, tmp_path / "run", resume=True), finished, 6)


def test_a_finished_run_can_be_trained_further(finished: Run, tmp_path: Path) -> None:
    recipe = finished.recipe.model_copy(update={"steps": 4})
    run = go(recipe, tmp_path / "run")
    assert len(metrics(run)) == 4
    run = go(finished.recipe, tmp_path / "run", resume=True)
    assert trajectories(run.trajectories) == trajectories(finished.trajectories)
    assert_equal_runs(run, finished, 6)


def test_resuming_samples_no_more_than_what_is_missing(finished: Run, tmp_path: Path) -> None:
    """Nothing is replayed, and the first prompt is played by the resumed policy, in its version."""
    go(finished.recipe.model_copy(update={"steps": 4}), tmp_path / "run")
    opened: list[int] = []
    original = EmbeddedSampler.open

    def counting(self: Any, prompt_ids: Any, seeds: Any) -> Any:
        opened.extend(self.version for _ in seeds)
        return original(self, prompt_ids, seeds)

    with mock.patch.object(EmbeddedSampler, "open", counting):
        go(finished.recipe, tmp_path / "run", resume=True, tool=echo)
    assert opened == [4] * 12 + [5] * 12 + [6] * 2


def test_a_run_that_is_resumed_when_nothing_is_missing(finished: Run, tmp_path: Path) -> None:
    run = go(finished.recipe, tmp_path / "run")
    assert_equal_runs(go(finished.recipe, run.path, resume=True), finished, 6)
