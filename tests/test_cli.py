"""The command line, on tiny random models: what it does, prints, refuses, and how it ends."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_kit import plain, save_model, small, spawn, torl
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import Result

from torl import doctor
from torl.cli import looking, training
from torl.config import Recipe, builtin_recipes
from torl.errors import UserError, WorldFault
from torl.run import Run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a task file, and in runs/one a run of two steps."""
    folder = tmp_path_factory.mktemp("place")
    save_model(folder / "model")
    lines = [json.dumps({"problem": f"What is {n} + {n}?", "answer": str(2 * n)}) for n in range(12)]
    (folder / "sums.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "more.jsonl").write_text('{"problem": "What is 12 * 31?", "answer": "372"}\n')
    done = torl("train", "quickstart", *small(folder), "--run", folder / "runs" / "one")
    assert done.exit_code == 0, done.output
    (folder / "trained.txt").write_text(done.stdout)
    return folder


@pytest.fixture
def run(place: Path) -> Path:
    return place / "runs" / "one"


class TestStart:
    def test_help_lists_the_commands(self) -> None:
        listed = torl("--help").stdout
        for command in ("train", "quickstart", "recipes", "eval", "chat", "doctor", "report", "show"):
            assert f"\n  {command} " in listed

    @pytest.mark.parametrize("command", ["train", "quickstart", "eval", "chat", "doctor", "report", "show"])
    def test_each_command_has_a_help(self, command: str) -> None:
        assert torl(command, "--help").exit_code == 0

    def test_without_a_command_it_helps(self) -> None:
        assert "Usage:" in torl().output

    @pytest.mark.parametrize("arguments", [["--help"], ["recipes"], ["train", "quickstart", "--show"]])
    def test_it_starts_without_torch(self, arguments: list[str]) -> None:
        code = (
            "import sys\nfrom torl.cli import app\n"
            f"app({arguments!r}, standalone_mode=False)\n"
            "print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])\n"
        )
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.stdout.splitlines()[-1] == "[]"
        # Processor time: a wall clock would measure who else uses the machine.
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5

    def test_recipes_are_listed_with_a_line_each(self) -> None:
        lines = torl("recipes").stdout.splitlines()
        assert [line.split(maxsplit=1) for line in lines] == [list(r) for r in builtin_recipes().items()]

    def test_show_prints_yaml_and_does_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        shown = torl("train", "quickstart", "steps=7", "--show")
        assert yaml.safe_load(shown.stdout)["steps"] == 7
        assert list(tmp_path.iterdir()) == []


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["train", "quikstart"], "Did you mean quickstart?"),
            (["train", "quickstart", "learner.lrr=1"], "Did you mean lr?"),
            (["quickstart", "steps=0"], "greater than 0"),
            (["quickstart", "steps"], "key=value"),
            (["train", "quickstart", "--resume"], "no unfinished run of quickstart"),
            (["train", "quickstart", "--resume", "--run", "nowhere"], "not the folder of a run"),
            (["train", "quickstart", "model=./nowhere"], "no model folder"),
            (["train", "quickstart", "tasks.train=none.jsonl"], "no task file"),
            (["eval", "./nowhere"], "no model folder"),
            (["eval", "./nowhere", "--recipe", "nope"], "no recipe named"),
            (["chat", "./nowhere"], "no model folder"),
            (["report", "nowhere"], "not the folder of a run"),
            (["show", "nowhere"], "not the folder of a run"),
        ],
    )
    def test_one_clear_message(
        self, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        result = torl(*arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert said in result.stderr
        assert "Traceback" not in result.output

    def test_the_message_is_red_and_whole(self, tmp_path: Path) -> None:
        long = "x" * 200
        environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": "80"}
        process = spawn("train", f"{long}.yaml", cwd=tmp_path, env=environment)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 2
        assert "\x1b[1;31m" in errors
        assert f"{long}.yaml" in errors

    def test_the_world_s_fault_is_no_traceback_either(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result = self._failing(monkeypatch, WorldFault("the sandbox is gone"))
        assert (result.exit_code, result.stderr) == (1, "error: the sandbox is gone\n")

    def test_a_bug_keeps_its_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result = self._failing(monkeypatch, ZeroDivisionError("ours"))
        assert isinstance(result.exception, ZeroDivisionError)
        assert "error:" not in result.stderr

    def _failing(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Result:
        def fail() -> None:
            raise error

        monkeypatch.setattr(looking, "builtin_recipes", fail)
        return torl("recipes")


class TestTrain:
    def test_it_ends_with_the_table_and_the_paths(self, place: Path, run: Path) -> None:
        shown = plain((place / "trained.txt").read_text())
        assert shown.startswith(f"quickstart: {place / 'model'}, 2 steps, tools: python, run: {run}")
        assert re.search(r"sums before \d+\.\d% \d+\.\d – \d+\.\d% 4 ", shown)
        assert re.search(r"after \d+\.\d% \d+\.\d – \d+\.\d% 4 \S+ \S+ [+-]\d+\.\d", shown)
        for path in ("checkpoints/step-00002/model", "trajectories", "report.html"):
            assert f"{run / path}" in shown
            assert (run / path).exists()
        assert f"torl chat {run}" in shown

    def test_the_checkpoint_is_a_plain_hugging_face_folder(self, run: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "step-00002" / "model")
        tokenizer = AutoTokenizer.from_pretrained(run / "checkpoints" / "step-00002" / "model")
        assert model.config.vocab_size >= len(tokenizer)

    def test_a_run_s_folder_is_not_used_twice(self, place: Path, run: Path) -> None:
        result = torl("train", "quickstart", *small(place), "--run", run)
        assert result.exit_code == 2
        assert "holds a finished run" in result.stderr

    def test_the_output_of_a_real_process(self, place: Path, tmp_path: Path) -> None:
        """Nothing of transformers' bars, nothing that waits for input; runs/ is made here."""
        process = spawn("quickstart", *small(place), cwd=tmp_path, stdin=subprocess.DEVNULL)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        for bar in ("Writing model shards", "Loading weights", "it/s"):
            assert bar not in output + errors
        assert errors == ""
        assert [line for line in output.splitlines() if line.startswith("step ")][1].startswith("step 1 ")
        assert re.search(r"torl chat runs/quickstart-\d+-1", output)
        assert len(list(tmp_path.glob("runs/quickstart-*-1/summary.json"))) == 1


class TestResume:
    def test_ctrl_c_saves_and_says_how_to_go_on(self, place: Path, tmp_path: Path) -> None:
        many = [*small(place), "steps=5000", "checkpoint.every=0"]
        process = spawn("train", "quickstart", *many, "--run", "my runs/a", cwd=tmp_path)
        assert process.stdout is not None
        seen = []
        while not (seen and seen[-1].startswith("step 1 ")):
            seen.append(process.stdout.readline())
            assert seen[-1], process.communicate()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        stopped = re.search(r"Stopped after (\d+) of 5000 steps", output)
        assert stopped is not None
        assert output.splitlines()[-1] == "  torl train 'my runs/a/recipe.yaml' --run 'my runs/a' --resume"
        done = int(stopped[1])
        more = [f"steps={done + 1}", "--run", "my runs/a", "--resume"]
        process = spawn("train", "my runs/a/recipe.yaml", *more, cwd=tmp_path)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert [line.split()[1] for line in output.splitlines() if line.startswith("step ")] == [str(done)]

    def test_without_a_folder_the_newest_unfinished_run_goes_on(
        self, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name, state in [("old", 1), ("new", 1), ("finished", 1), ("begun", 0), ("other", 1)]:
            self._run(tmp_path / "runs" / name, "other" if name == "other" else "quickstart", state)
        (tmp_path / "runs" / "finished" / "summary.json").write_text("{}")
        (tmp_path / "runs" / "broken").mkdir()
        (tmp_path / "runs" / "broken" / "recipe.yaml").write_text("steps: [")
        os.utime(tmp_path / "runs/old/checkpoints/step-00001/state.json", (1, 1))
        assert training.newest_unfinished("quickstart") == Path("runs/new")
        assert training.newest_unfinished("other") == Path("runs/other")
        with pytest.raises(UserError, match="--run"):
            training.newest_unfinished("torl-7b")
        # It is another recipe now: refused, and the run stays as it was.
        result = torl("train", "quickstart", *small(place), "--resume")
        assert result.exit_code == 2
        assert "runs/new was begun with another recipe" in result.stderr

    def _run(self, folder: Path, name: str, checkpoints: int) -> None:
        Run.create(folder, Recipe(name=name)).close()
        for number in range(checkpoints):
            checkpoint = folder / "checkpoints" / f"step-{number + 1:05d}"
            checkpoint.mkdir(parents=True)
            (checkpoint / "state.json").write_text(json.dumps({"step": number + 1, "updates": 1}))


class TestEval:
    def test_a_run_is_measured_with_its_own_recipe(self, run: Path) -> None:
        result = torl("eval", run, "--json")
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert told["model"] == str(run / "checkpoints" / "step-00002" / "model")
        assert told["steps"] == 2
        summary = json.loads((run / "summary.json").read_text())
        assert told["heldout"] == {"sums": summary["heldout_after"]}

    def test_tasks_limit_and_table(self, place: Path, run: Path, tmp_path: Path) -> None:
        sources = ["--tasks", place / "more.jsonl", "--tasks", "builtin"]
        result = torl("eval", run, *sources, "--limit", 2, "--out", tmp_path / "out")
        assert result.exit_code == 0, result.output
        assert re.search(r"more \d+\.\d% \d+\.\d – \d+\.\d% 1 ", plain(result.stdout))
        assert re.search(r"builtin \d+\.\d% \d+\.\d – \d+\.\d% 2 ", plain(result.stdout))
        assert len((tmp_path / "out" / "builtin.jsonl").read_text().splitlines()) == 2
        assert set(json.loads((tmp_path / "out" / "summary.json").read_text())["heldout"]) == {
            "more",
            "builtin",
        }

    def test_a_model_with_a_recipe_and_overrides(self, place: Path) -> None:
        changes = ["prompt.template=torl", "rollout.max_completion_tokens=40", "dtype=float32"]
        tasks = ["--tasks", place / "more.jsonl"]
        result = torl("eval", place / "model", *changes, *tasks, "--recipe", "cpu-mawps", "--json")
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert (told["model"], told["recipe"], told["heldout"]["more"]["n"]) == (
            str(place / "model"),
            "cpu-mawps",
            1,
        )

    def test_a_checkpoint_of_a_run(self, run: Path) -> None:
        for path in (run / "checkpoints" / "step-00002", run / "checkpoints" / "step-00002" / "model"):
            result = torl("eval", path, "--json")
            assert json.loads(result.stdout)["heldout"]["sums"]["n"] == 4, result.output

    def test_the_training_tasks_are_not_measured_unnoticed(self, place: Path, run: Path) -> None:
        result = torl("eval", run, "--tasks", place / "sums.jsonl", "--limit", 1, "--json")
        assert "is what the recipe trains on" in result.stderr

    def test_a_run_without_a_checkpoint(self, tmp_path: Path) -> None:
        Run.create(tmp_path / "run", Recipe()).close()
        result = torl("eval", tmp_path / "run")
        assert result.exit_code == 2
        assert "has no checkpoint yet" in result.stderr


class TestLooking:
    def test_show_the_newest_step(self, run: Path) -> None:
        shown = torl("show", run, "--n", 2).stdout
        assert "2 of 4 trajectories" in shown
        assert "step-00001.jsonl" in shown
        assert shown.count("ended by") == 2

    def test_show_a_step_and_an_evaluation(self, run: Path) -> None:
        assert "step-00000.jsonl" in torl("show", run, "--step", 0, "--n", 100).stdout
        shown = torl("show", run, "--eval", "after").stdout
        assert "3 of 4 trajectories" in shown
        assert "What is" in shown

    @pytest.mark.parametrize(
        ("options", "said"),
        [(["--step", "7"], "step-00000 to step-00001"), (["--eval", "during"], "after-sums, before-sums")],
    )
    def test_show_says_what_there_is(self, run: Path, options: list[str], said: str) -> None:
        result = torl("show", run, *options)
        assert result.exit_code == 2
        assert said in result.stderr

    def test_show_before_the_first_step(self, tmp_path: Path) -> None:
        Run.create(tmp_path / "run", Recipe()).close()
        assert "no training step yet" in torl("show", tmp_path / "run").stderr

    def test_report_is_written_anew(self, run: Path) -> None:
        (run / "report.html").unlink()
        assert torl("report", run).stdout == f"{run / 'report.html'}\n"
        assert "<html" in (run / "report.html").read_text()

    @pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
    def test_doctor(self, status: Any, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
        found = doctor.Finding("cores", "2", status, "a hint")
        monkeypatch.setattr(doctor, "findings", lambda: [found])
        result = torl("doctor")
        assert result.exit_code == code
        assert "cores" in result.stdout
