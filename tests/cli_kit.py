"""What the tests of the command line share: commands run here or in a process, a tiny model."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tiny import byte_level_tokenizer, tiny_model
from typer.testing import CliRunner, Result

from torl.cli import app

TORL = [sys.executable, "-c", "from torl.cli import app; app()"]
CALL = "Let me compute.\n```python\nprint(12 * 31)\n```\n```output"


def torl(*arguments: object, stdin: str | None = None) -> Result:
    """Runs a command in this process."""
    return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)


def spawn(*arguments: object, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """Runs a command in a process of its own, with Python's warnings as they are."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*TORL, *map(str, arguments)], cwd=cwd, text=True, **(pipes | options))


def save_model(folder: Path, chat_template: str | None = None) -> Path:
    """Writes a tiny random model with its tokenizer; returns its folder."""
    tiny_model("llama", scale=0.3).save_pretrained(folder)
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    return folder


def small(folder: Path) -> list[str]:
    """Overrides that make a run of the quickstart's recipe take a second."""
    return [
        *(f"model={folder / 'model'}", "device=cpu", "dtype=float32", "prompt.template=torl"),
        *("steps=2", "prompts_per_step=2", "group_size=2", "checkpoint.every=1", "sampler.max_sequences=8"),
        *("rollout.max_completion_tokens=24", "rollout.max_observation_tokens=8"),
        *(f"tasks.train={folder / 'sums.jsonl'}", f"tasks.test={folder / 'sums.jsonl'}", "tasks.holdout=4"),
    ]


def plain(text: str) -> str:
    """Without colours, and with runs of spaces as one."""
    return re.sub(r" +", " ", re.sub(r"\x1b\[[\d;]*m", "", text))
