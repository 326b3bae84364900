"""``torl chat``: with words put into a tiny model's mouth, tools that really run."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_kit import CALL, save_model, spawn, torl
from rich.console import Console
from transformers import AutoTokenizer
from typer.testing import Result

from torl import parts
from torl.cli import conversation
from torl.samplers.scripted import ScriptedSampler

PLAIN = ["prompt.template=torl", "dtype=float32", "device=cpu", "rollout.max_completion_tokens=80"]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}assistant: "
Turns = Sequence[str]
END = 2  # <|im_end|>


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "model")


def ask(model: Path, stdin: str, *changes: str) -> Result:
    return torl("chat", model, *PLAIN, *changes, stdin=stdin)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[int]]]:
    """Puts words into the model's mouth: ``scripted(turns, ...)``, the turns of each question.
    Returns the contexts in which it was asked."""

    def put(*questions: Turns) -> list[list[int]]:
        contexts: list[list[int]] = []
        spoken: dict[Any, int] = {}

        def sampler(_: Any, vocabulary: Any, ends: Any, **__: Any) -> ScriptedSampler:
            def script(seed: Any, context: Sequence[int]) -> list[int]:
                contexts.append(list(context))
                number = spoken[seed] = spoken.get(seed, -1) + 1
                turn = questions[list(spoken).index(seed)][number]
                return [*vocabulary.encode(turn), END]

            return ScriptedSampler(vocabulary, script, ends)

        monkeypatch.setattr(parts, "EmbeddedSampler", sampler)
        return contexts

    return put


class TestChat:
    def test_a_call_really_runs_and_is_shown(self, model: Path, scripted: Any) -> None:
        scripted([CALL, "So \\boxed{372}."])
        result = ask(model, "What is 12 * 31?\nexit\nnever asked\n")
        assert result.exit_code == 0, result.output
        assert "tools: python" in result.stdout
        assert "Each question stands alone" in result.stdout
        assert "> What is 12 * 31?\n" in result.stdout
        assert f"{CALL}\n372\n```\nSo \\boxed{{372}}.\n[" in result.stdout
        assert "calls: ok]" in result.stdout
        assert "never asked" not in result.stdout

    def test_who_wrote_what_is_coloured(
        self, model: Path, scripted: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        colours = Console(force_terminal=True, color_system="standard", highlight=False)
        monkeypatch.setattr(conversation, "console", colours)
        scripted([CALL, "So \\boxed{372}."])
        shown = ask(model, "What is 12 * 31?\n").stdout
        assert "\x1b[36mprint(12 * 31)\x1b[0m" in shown
        assert "\x1b[33m372\x1b[0m" in shown
        assert "\x1b[1;7m\\boxed{372}\x1b[0m" in shown

    def test_the_chat_template_remembers(self, tmp_path: Path, scripted: Any) -> None:
        folder = save_model(tmp_path / "chatty", TEMPLATE)
        contexts = scripted([CALL, "So \\boxed{372}."], ["Again 372."])
        changes = ["prompt.template=chat", "rollout.max_completion_tokens=200"]
        result = ask(folder, "What is 12 * 31?\nAnd again?\n", *changes)
        assert result.exit_code == 0, result.output
        assert "stands alone" not in result.stdout
        asked = AutoTokenizer.from_pretrained(folder).decode(contexts[-1])
        assert "user: What is 12 * 31?" in asked
        assert f"assistant: {CALL}\n372\n```\nSo \\boxed{{372}}.<|im_end|>user: And again?" in asked

    def test_what_goes_wrong_does_not_end_it(self, model: Path, scripted: Any) -> None:
        scripted(["Four."])
        result = ask(model, f"{'long ' * 3000}\n\nWhat is 2 + 2?\n")
        assert result.exit_code == 0
        assert "the question is too long" in result.stderr
        assert "Four." in result.stdout

    def test_through_a_pipe(self, model: Path) -> None:
        """A process of its own, the real sampler, and the end of the input as the end."""
        process = spawn("chat", model, *PLAIN, cwd=model)
        output, errors = process.communicate("What is 1 + 1?\n", timeout=300)
        assert process.returncode == 0, errors
        assert errors == ""
        assert re.search(r"\[\d+ tokens · ", output)
