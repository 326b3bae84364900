"""What people read of a run: the trajectory in colours, the live progress, the report."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from torl.config import Recipe
from torl.insight.examples import only_after_training
from torl.insight.progress import Progress
from torl.insight.render import headline, legend, render, to_html, visible
from torl.insight.report import write_report
from torl.insight.stats import heldout_metrics, summary_of
from torl.run import Run
from torl.types import Completion, Group, StopReason, Task, ToolResult, Trajectory

CALL = "Let me compute.\n```python\nprint(12 * 31)\n```\n```output"
SCRIPT = "<script>alert('x')</script>"


def episode(name: str, right: bool, **fields: Any) -> Trajectory:
    """A call and its answer, an output block that the policy invented, the final box."""
    trajectory = Trajectory(Task(name, f"What is 12 * 31? {SCRIPT}", "372"), 0, [1])
    turn = trajectory.append_completion(Completion([7], [-0.5], StopReason.STOP), CALL)
    turn.result = ToolResult("372", run_s=0.12)
    trajectory.append_observation([8], f"\n372{SCRIPT}\x1b[31m\n```\n")
    last = f"```output\n99\n```\nSo \\boxed{{{372 if right else 0}}}."
    trajectory.append_completion(Completion([7], [-0.5], StopReason.END), last)
    trajectory.stop_reason, trajectory.correct, trajectory.reward = StopReason.END, right, float(right)
    trajectory.reward_parts, trajectory.invented_outputs = {"correctness": float(right)}, 1
    for key, value in fields.items():
        setattr(trajectory, key, value)
    return trajectory


def groups(*trajectories: Trajectory) -> list[Group]:
    return [Group(t.task, [t]) for t in trajectories]


# A trajectory


def test_visible_escapes_what_a_terminal_would_obey() -> None:
    text = "a\tb\r\nc\x1b[31m\x07\x9b\u202e\ud800é"
    assert visible(text) == "a\tb\nc\\x1b[31m\\x07\\x9b\\u202e\\ud800é"


def test_headline() -> None:
    assert headline(episode("a/1", True)) == [
        "a/1#0",
        "correct",
        "reward +1 (correctness +1)",
        "ended by end",
        "calls: 1 (ok 0.12 s)",
        "invented outputs: 1",
    ]
    bare = Trajectory(Task("a/\x1b", "", ""), 0, [])
    assert headline(bare) == ["a/\\x1b#0", "not judged", "ended by length", "no calls"]


def test_the_terminal_shows_who_wrote_what() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=100)
    console.print(legend())
    console.print(render(episode("a/1", True), prompt="Question: 12 * 31?\n"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2mQuestion: 12 * 31?\x1b[0m" in shown
    assert "\x1b[36mprint(12 * 31)\x1b[0m" in shown
    assert f"\x1b[33m372{SCRIPT}\\x1b[31m\x1b[0m" in shown  # its own escape is text
    assert "\x1b[1;31m99\x1b[0m" in shown
    assert "\x1b[1;7;32m\\boxed{372}\x1b[0m" in shown


def test_markup_in_a_model_s_text_is_text() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(render(episode("a/[bold]1[/bold]", True), prompt="[red]not red[/red] [/]"))
    assert "[red]not red[/red] [/]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_html_escapes_everything() -> None:
    fragment = to_html(episode(SCRIPT, False))
    assert "<script" not in fragment
    assert '<article class="trajectory wrong">' in fragment
    assert '<span class="t-invented">99\n```</span>' in fragment
    assert '<span class="t-answer">\\boxed{0}</span>' in fragment
    assert "372&lt;script&gt;" in fragment
    fragment.encode()  # no lone surrogate


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


METRICS = {
    "reward/mean": -0.25,
    "rollout/accuracy": 0.375,
    "rollout/code_ratio": 1.0,
    "sampler/tokens_per_s": 1234.5,
    "time/step_s": 30.0,
}


def test_without_a_terminal_there_is_one_plain_line_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    with Progress(4, file=file) as progress:
        progress.step(0, METRICS)
        with progress.part("rollout", 9, quiet=True) as advance:
            advance(9)
        progress.step(1, {**METRICS, "rollout/pass_ratio": 0.5})
        progress.note("saved \x1b[31m[bold]")
        with progress.part("evaluating mawps", 2) as advance:
            advance()
            advance()
    assert file.getvalue().splitlines() == [
        "step 0  reward -0.250  accuracy 37.5%  code 100.0%  tokens/s 1,234  left 1m 30s",
        "step 1  reward -0.250  accuracy 37.5%  code 100.0%  pass 50.0%  tokens/s 1,234  left 1m 00s",
        "saved \\x1b[31m[bold]",
        "evaluating mawps: 2/2 in 0 s",
    ]


def test_a_long_part_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torl.insight.progress._SAY_EVERY_S", -1.0)
    file = io.StringIO()
    with Progress(file=file) as progress, progress.part("mawps", 3) as advance:
        advance()
        advance(2)
    assert file.getvalue().splitlines() == ["mawps: 1/3", "mawps: 3/3 in 0 s"]


def test_a_terminal_gets_rows_and_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    file = Terminal()
    with Progress(12, start=10, file=file) as progress:
        assert progress.time_left() == "?"
        progress.step(10, METRICS)
        assert progress.time_left() == "30 s"
        progress.step(11, METRICS)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", file.getvalue())
    assert re.search(r"step +reward accuracy +code +pass +tokens tokens/s", shown)
    assert re.search(r"10 +-0\.250 +37\.5% +100\.0% +- +- +1,234 +30\.0 +30 s", shown)
    assert "12/12" in shown


def test_time_left_is_that_of_the_latest_steps() -> None:
    progress = Progress(1000, file=io.StringIO())
    for step in range(20):
        progress.step(step, {"time/step_s": 99.0 if step < 12 else 10.0})
    assert progress.time_left() == "2h 43m"


# The report


def run_with(path: Path, steps: int, metrics: dict[str, float]) -> Run:
    run = Run.create(path, Recipe(description=f"R {SCRIPT}", steps=max(1, steps)))
    for step in range(steps):
        run.write_step(step, groups(episode("a/1", True), episode("a/2", False)), metrics)
    return run


FULL = {
    **METRICS,
    "rollout/pass_ratio": 0.9,
    "rollout/completion_tokens": 60.0,
    "rollout/observation_tokens": 9.0,
    "time/rollout_s": 20.0,
    "time/update_s": 9.0,
}


def check_page(page: str) -> None:
    """Self-contained, nothing of the model's executed, no colour left that a dark page would hide."""
    assert "http:" not in page
    assert "https:" not in page
    assert "<script" not in page
    assert not re.search(r"\b(src|href)=\"(?!#)", page)
    assert "#0f0e0d" not in page
    assert "$" not in re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL)


def test_report_of_a_finished_run(tmp_path: Path) -> None:
    before = [episode("a/1", False), episode("a/2", False)]
    after = [episode("a/1", True), episode("a/2", False)]
    with run_with(tmp_path / "r", 12, FULL) as run:
        run.write_eval("before", "data/mawps.jsonl", groups(*before), step=0)
        run.write_eval("after", "data/mawps.jsonl", groups(*after), step=12)
        run.append_metrics(12, heldout_metrics("data/mawps.jsonl", summary_of(after)))
        summaries = ({"data/mawps.jsonl": summary_of(ts)} for ts in (before, after))
        run.write_summary(*summaries, steps=12, seconds=90.0)
        solved = only_after_training(run)
    page = write_report(tmp_path / "r").read_text()
    check_page(page)
    assert solved is not None
    assert solved.after.task.id == "a/1"
    assert page.count("<svg") == 5
    assert "12 steps in 1.5 min" in page
    assert "Solved only after training" in page
    assert "<strong>0.0%</strong>" in page
    assert "<strong>50.0%</strong>" in page
    assert "9.5% – 90.5%" in page  # Wilson, 1 of 2
    assert "held-out mawps" in page
    assert "R &lt;script&gt;" in page
    assert (tmp_path / "r" / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("metrics", [{}, {"reward/mean": 0.0}, FULL])
def test_report_of_an_interrupted_run(tmp_path: Path, steps: int, metrics: dict[str, float]) -> None:
    with run_with(tmp_path / "r", steps, metrics) as run:
        run.write_eval("before", "mawps", groups(episode("a/1", False)), step=0)
        page = write_report(run.path).read_text()  # while the run still holds its lock
    check_page(page)
    assert f"not finished: {steps} of {max(1, steps)} steps" in page
    assert "not measured" in page  # after training
    assert "Solved only after training" not in page


def test_report_of_a_run_that_did_nothing_yet(tmp_path: Path) -> None:
    with run_with(tmp_path / "r", 0, {}) as run:
        page = write_report(run.path).read_text()
    check_page(page)
    assert "No step is done yet" in page
    assert "No held-out evaluation is done yet" in page
    assert "No judged trajectory is stored yet" in page


def test_several_sets_each_have_their_rows_and_points(tmp_path: Path) -> None:
    summary = summary_of([episode("a/1", True)])
    nothing = summary_of([])
    with run_with(tmp_path / "r", 1, FULL) as run:
        sets = {"mawps": summary, "svamp": nothing}
        run.write_summary(sets, sets, steps=1, seconds=1.0)
        page = write_report(run.path).read_text()
    assert all(text in page for text in ("<th>mawps</th>", "<th>svamp</th>", "held-out mawps"))
    assert "held-out svamp" not in page  # nothing was judged


def test_the_same_run_gives_the_same_picture(tmp_path: Path) -> None:
    with run_with(tmp_path / "r", 9, FULL) as run:
        write_report(run.path)
        first = (run.path / "curves.png").read_bytes()
        write_report(run.path)
    assert (tmp_path / "r" / "curves.png").read_bytes() == first
