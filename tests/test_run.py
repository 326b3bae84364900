"""A run's folder: its lock, its files, what a kill or a full disk leaves."""

import errno
import json
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from torl.config import Recipe
from torl.errors import UserError
from torl.insight import files
from torl.insight.files import atomic_write
from torl.insight.stats import Summary
from torl.insight.store import read_trajectories
from torl.run import Run, default_run_dir
from torl.types import Group, Task, Trajectory

SUMMARY: Summary = {"accuracy": 0.5, "n": 4, "ci95": [0.15, 0.85], "code_ratio": 1.0, "pass_ratio": None}


def group(task_id: str = "add/7") -> Group:
    task = Task(task_id, "What is 12 * 31?", "372")
    return Group(task, [Trajectory(task, sample, prompt_ids=[1, 2]) for sample in range(2)])


def run_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


HOLD = """
    import sys
    from torl.config import Recipe
    from torl.run import Run
    run = Run.create(sys.argv[1], Recipe())
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_create_writes_the_resolved_recipe_and_the_versions(tmp_path: Path) -> None:
    recipe = Recipe(seed=3)
    with Run.create(tmp_path / "a", recipe) as run:
        versions = run.versions()
    assert Run.open(tmp_path / "a").recipe == recipe
    assert {"python", "torch", "transformers", "torl", "git_commit", "platform", "cores"} <= set(versions)
    assert versions["cores"] >= 1


def test_a_live_process_keeps_others_out_and_a_dead_one_does_not(tmp_path: Path) -> None:
    with run_python(HOLD, tmp_path / "a") as child:
        assert child.stdout
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match=f"in use by process {child.pid}.*--resume.*another folder"):
            Run.create(tmp_path / "a", Recipe())
        with pytest.raises(UserError, match="in use"):
            Run.open(tmp_path / "a", lock=True)
        assert Run.open(tmp_path / "a").recipe == Recipe()  # reading needs no lock
        child.kill()
        child.wait()
    with Run.open(tmp_path / "a", lock=True):
        pass


def test_the_same_process_is_kept_out_too_until_it_closes(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a", Recipe()), pytest.raises(UserError, match="in use"):
        Run.open(tmp_path / "a", lock=True)
    Run.open(tmp_path / "a", lock=True).close()


def test_a_worker_that_outlives_the_run_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = """
        import os, sys, time
        from torl.config import Recipe
        from torl.run import Run
        Run.create(sys.argv[1], Recipe())
        worker = os.fork()
        if worker == 0:
            os.close(1)
            time.sleep(30)
            os._exit(0)
        print(worker, flush=True)
        os._exit(1)  # as if killed
    """
    with run_python(code, tmp_path / "a") as child:
        worker = int(child.communicate()[0])
    try:
        Run.open(tmp_path / "a", lock=True).close()
    finally:
        os.kill(worker, 9)


def test_used_folders_are_refused_with_remedies(tmp_path: Path) -> None:
    Run.create(tmp_path / "begun", Recipe()).close()
    with pytest.raises(UserError, match=r"was begun.*--resume.*another folder"):
        Run.create(tmp_path / "begun", Recipe())
    with Run.create(tmp_path / "done", Recipe()) as run:
        run.write_summary({}, {}, steps=1, seconds=1.0)
    with pytest.raises(UserError, match=r"finished run.*another folder.*--resume"):
        Run.create(tmp_path / "done", Recipe())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"not empty \(notes.txt\)"):
        Run.create(tmp_path / "other", Recipe())
    with pytest.raises(UserError, match="is a file"):
        Run.create(tmp_path / "other" / "notes.txt", Recipe())
    with pytest.raises(UserError, match=r"not the folder of a run.*begun"):
        Run.open(tmp_path)


def test_a_refusal_leaves_no_lock(tmp_path: Path) -> None:
    Run.create(tmp_path / "a", Recipe()).close()
    for _ in range(2):
        with pytest.raises(UserError, match="begun"):
            Run.create(tmp_path / "a", Recipe())


def test_metrics_are_one_object_per_step(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a", Recipe()) as run:
        run.append_metrics(0, {"reward/mean": -0.5, "loss/policy": float("nan")})
        run.append_metrics(1, {"reward/mean": 0.25})
        lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [0, 1]
        assert lines[0]["loss/policy"] is None  # NaN is not JSON
        assert "loss/policy" not in run.metrics()[0]
        assert run.metrics()[1]["reward/mean"] == 0.25


def test_rewind_drops_what_will_be_made_again(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a", Recipe()) as run:
        for step in range(4):
            run.write_step(step, [group()], {"reward/mean": float(step)})
        run.write_eval("before", "mawps", [group()], step=0)
        after = run.write_eval("after", "mawps", [group()], step=4)
        run.write_summary({"mawps": SUMMARY}, {"mawps": SUMMARY}, steps=4, seconds=1.0)
        with open(run.path / "metrics.jsonl", "a") as file:
            file.write('{"step": 4, "rew')  # killed here
        run.rewind(2)
        assert [row["step"] for row in run.metrics()] == [0, 1]
        assert [p.name for p in sorted(run.trajectories.iterdir())] == [
            "step-00000.jsonl",
            "step-00001.jsonl",
        ]
        assert run.eval_file("before", "mawps").exists()
        assert not after.exists()
        assert run.summary() is None
        run.append_metrics(2, {})
        assert [row["step"] for row in run.metrics()] == [0, 1, 2]


def test_rewind_to_a_step_that_is_not_there_yet_keeps_all(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a", Recipe()) as run:
        run.rewind(0)
        run.write_step(0, [group()], {})
        run.rewind(1)
        assert len(list(read_trajectories(run.trajectories))) == 2
        assert len(run.metrics()) == 1


def test_summary_has_the_keys_that_others_rely_on(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a", Recipe(seed=5)) as run:
        run.write_summary({"mawps": SUMMARY}, {"mawps": SUMMARY}, steps=4, seconds=1.5)
        summary = json.loads((run.path / "summary.json").read_text())
        assert set(summary) == {
            "heldout_before", "heldout_after", "heldout", "steps", "seconds", "seed", "recipe", "versions",
        }  # fmt: skip
        assert summary["heldout_before"] == SUMMARY
        assert (summary["steps"], summary["seconds"], summary["seed"]) == (4, 1.5, 5)
        two = {"mawps": SUMMARY, "svamp": {**SUMMARY, "n": 9}}
        run.write_summary(two, two, steps=4, seconds=1.5)  # type: ignore[arg-type]
        summary = run.summary()
        assert summary is not None
        assert summary["heldout_after"]["n"] == 4
        assert summary["heldout"]["svamp"]["after"]["n"] == 9


def test_a_set_given_by_its_path_names_its_file_by_its_stem(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a", Recipe()) as run:
        assert run.eval_file("before", "../data/mawps.jsonl").name == "before-mawps.jsonl"
        assert run.eval_file("after", "hf:owner/name:test").name == "after-name_test.jsonl"


def test_default_run_dir_takes_the_next_free_number(tmp_path: Path) -> None:
    first = default_run_dir("my recipes/fast one.yaml", root=tmp_path)
    assert first.name.startswith("fast-one-")
    assert first.name.endswith("-1")
    first.mkdir()
    assert default_run_dir("fast one", root=tmp_path).name == first.name[:-1] + "2"


def test_a_failure_between_write_and_rename_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    atomic_write(tmp_path / "file", "old")

    def fails(*_: Any) -> None:
        raise OSError(errno.EIO, "simulated")

    monkeypatch.setattr(files.os, "replace", fails)
    with pytest.raises(OSError, match="simulated"):
        atomic_write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_failure_while_the_data_is_made_leaves_the_old_file(tmp_path: Path) -> None:
    def data() -> Any:
        yield b"half"
        raise KeyboardInterrupt

    atomic_write(tmp_path / "file", b"old")
    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "file", data())
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_full_disk_says_what_was_written_and_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match=r"no space left.*summary\.json.*--resume"):
        atomic_write(tmp_path / "summary.json", "x")
    assert list(tmp_path.iterdir()) == []


@contextmanager
def room_for(path: Path, more_bytes: int) -> Iterator[None]:
    """No file can grow beyond this one's size plus a few bytes: a disk that fills up mid-write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_in_the_middle_of_a_line_leaves_whole_lines(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a", Recipe()) as run:
        run.append_metrics(0, {"reward/mean": 1.0})
        path = run.path / "metrics.jsonl"
        before = path.read_bytes()
        with (
            room_for(path, more_bytes=10),
            pytest.raises(UserError, match=r"no space left.*metrics\.jsonl.*--resume"),
        ):
            run.append_metrics(1, {"reward/mean": 1.0})
        assert path.read_bytes() == before
        run.append_metrics(1, {})
        assert [row["step"] for row in run.metrics()] == [0, 1]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a", Recipe()) as run:
        (run.path / "metrics.jsonl").write_text("{oops\n")
        with pytest.raises(UserError, match=r"metrics\.jsonl is damaged"):
            run.metrics()
        (run.path / "summary.json").write_text("{oops\n")
        with pytest.raises(UserError, match=r"summary\.json is damaged"):
            run.summary()
