"""How a run ends in the terminal: the table, one episode, the paths."""

import re
from pathlib import Path

from cli_kit import CALL, plain
from rich.console import Console

from torl.config import Recipe
from torl.insight.ending import print_ending
from torl.insight.stats import summary_of
from torl.run import Run
from torl.types import Completion, Group, StopReason, Task, ToolResult, Trajectory


class TestEnding:
    """What a finished run ends with; here one that learned something."""

    def test_the_table_and_the_example(self, tmp_path: Path) -> None:
        shown = self._ending(tmp_path, right_after=True)
        assert re.search(r"sums before 0\.0% 0\.0 – 79\.3% 1 100\.0% 100\.0%", shown)
        assert re.search(r"after 100\.0% 20\.7 – 100\.0% 1 100\.0% 100\.0% \+100\.0", shown)
        example = shown[shown.index("Solved only after training:") :]
        assert "What is 12 * 31?" in example
        assert "print(12 * 31)" in example
        assert "\n372\n" in example
        assert "\\boxed{372}" in example
        assert f"torl chat {tmp_path / 'run'}" in example

    def test_nothing_was_learned(self, tmp_path: Path) -> None:
        shown = self._ending(tmp_path, right_after=False)
        assert "No held-out task was wrong before training and right after it." in shown

    def test_what_was_not_measured(self, tmp_path: Path) -> None:
        run = self._run(tmp_path, right_after=True)
        run.write_summary({}, {"sums": summary_of([_episode(True)])}, 1, 1.0)
        shown = self._shown(run, example=False)
        assert re.search(r"sums before – – – – –", shown)
        assert "Solved" not in shown

    def _ending(self, tmp_path: Path, right_after: bool) -> str:
        return self._shown(self._run(tmp_path, right_after), example=True)

    def _shown(self, run: Run, example: bool) -> str:
        console = Console(width=100, highlight=False)
        with console.capture() as captured:
            print_ending(run, console, example)
        return plain(captured.get())

    def _run(self, tmp_path: Path, right_after: bool) -> Run:
        with Run.create(tmp_path / "run", Recipe()) as run:
            before, after = _episode(False), _episode(right_after)
            for when, episode in (("before", before), ("after", after)):
                run.write_eval(when, "sums", [Group(episode.task, [episode])], 0)
            run.write_summary({"sums": summary_of([before])}, {"sums": summary_of([after])}, 1, 1.0)
        return run


def _episode(right: bool) -> Trajectory:
    """A call, its answer, and the final box."""
    trajectory = Trajectory(Task("sums/0", "What is 12 * 31?", "372"), 0, [1])
    turn = trajectory.append_completion(Completion([7], [-0.5], StopReason.STOP), CALL)
    turn.result = ToolResult("372", run_s=0.1)
    trajectory.append_observation([8], "\n372\n```\n")
    last = "So \\boxed{372}." if right else "So 371."
    trajectory.append_completion(Completion([7], [-0.5], StopReason.END), last)
    trajectory.stop_reason, trajectory.correct, trajectory.reward = StopReason.END, right, float(right)
    return trajectory
