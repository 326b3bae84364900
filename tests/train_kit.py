"""A whole training run in a second: a tiny random model, letters as reward, a tool that waits.

The model never writes a fence by chance, so here the letter e asks for a call. Also run as a
program, to be killed: ``python -m tests.train_kit FOLDER [--resume] [--die-in-checkpoint N]``.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.learner_kit import single_thread
from tests.tiny import byte_level_tokenizer, tiny_model
from torl.algorithms.advantages import each, grpo
from torl.config import Recipe
from torl.credit import give_advantages
from torl.insight.store import read_trajectories
from torl.learner.local import LocalLearner
from torl.parts import Parts, build
from torl.rollout import protocol
from torl.rollout.collect import collect
from torl.run import Run
from torl.tasks import TaskSets
from torl.train import train
from torl.types import Task, ToolCall, Trajectory

TASKS = [Task(f"letters/{n}", f"Say a: {'b' * (n % 5)} {n}", "1", kind="letters") for n in range(10)]
HELD_OUT = TaskSets(TASKS, {"held": [Task("held/0", "Say c", "1"), Task("held/1", "Say d", "2")]})
TIMES = ("time/", "tool/", "sampler/tokens_per_s")


def make_model(folder: Path, dtype: torch.dtype = torch.float32, seed: int = 0) -> str:
    """A model's folder, as transformers saves one. It likes to call, and at times ends its turn."""
    tokenizer = byte_level_tokenizer()
    model = tiny_model("qwen3", vocab_size=300, dtype=dtype, seed=seed, scale=0.3, hidden_size=32)
    with torch.no_grad():  # a direction that all hidden states share, and that some ids answer to
        model.model.embed_tokens.weight[:, 0] += 8.0
        model.lm_head.weight[tokenizer.convert_tokens_to_ids("e"), 0] += 1.0
        model.lm_head.weight[tokenizer.eos_token_id, 0] += 0.5
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def make_recipe(model: str, template: Path, **changes: Any) -> Recipe:
    template.write_text("{problem}\n")
    fields: dict[str, Any] = {
        "model": model,
        "dtype": "float32",
        "device": "cpu",
        "steps": 6,
        "prompts_per_step": 3,
        "group_size": 4,
        "rewards": {"letter_a": 1.0},
        "prompt": {"template": str(template)},
        "rollout": {"max_tool_calls": 2, "max_completion_tokens": 40, "max_observation_tokens": 12},
        "sampler": {"max_sequences": 8},
        "learner": {"lr": 3e-3, "pack_tokens": 128},
        "checkpoint": {"every": 2},
    }
    for key, value in changes.items():
        section = isinstance(value, dict) and key != "rewards"
        fields[key] = {**fields.get(key, {}), **value} if section else value
    return Recipe.model_validate(fields)


def letter_a(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
    """The share of the letter a in what the policy wrote."""
    text = trajectory.policy_text
    return text.count("a") / max(1, len(text))


async def echo(text: str) -> str:
    return f"heard {text.strip()}"


async def dawdle(text: str) -> str:
    """As echo, after a random while."""
    await asyncio.sleep(random.SystemRandom().uniform(0, 0.02))
    return f"heard {text.strip()}"


dawdle.__name__ = "echo"


@contextmanager
def letter_protocol() -> Iterator[None]:
    """The letter e asks for a call of the first tool, with what was written before it."""

    def requested(text: str, names: Sequence[str]) -> ToolCall:
        return ToolCall(names[0], text[-6:])

    with mock.patch.multiple(protocol, MARKER="e", requested_call=requested):
        yield


def go(
    recipe: Recipe,
    folder: Path,
    *,
    tool: Any = echo,
    tasks: Any = HELD_OUT,
    rewards: Sequence[Any] = (letter_a,),
    resume: bool = False,
    report: bool = False,
) -> Run:
    """Trains. Without ``report`` it draws no curves, which takes longer than all the rest."""
    write = sys.modules["torl.train"].write_report if report else lambda _: None
    with single_thread(), letter_protocol(), mock.patch("torl.train.write_report", write):
        return train(
            recipe,
            folder,
            tasks=tasks,
            tools=[tool] if tool is not None else [],
            rewards=rewards,
            resume=resume,
        )


@contextmanager
def parts_of(model: str, template: Path, **changes: Any) -> Iterator[Parts]:
    """What a run is made of, to roll out by hand; closed at the end."""
    with letter_protocol():
        parts = build(
            make_recipe(model, template, **changes), tasks=HELD_OUT, tools=[dawdle], rewards=[letter_a]
        )
        yield parts
    asyncio.run(parts.close())


def roll(parts: Parts, step: int) -> list[Trajectory]:
    """Judged trajectories of four groups, with their advantages."""
    groups = asyncio.run(collect(parts.agent, TASKS[:4], 6, parts.judge.judge, seed=(0, 0, step)))
    give_advantages(groups, each(grpo))
    return [t for group in groups for t in group.trajectories]


# What two equal runs have in common


def metrics(run: Run) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if k != "unix_time" and not k.startswith(TIMES)} for r in rows]


def trajectories(path: Path) -> list[Trajectory]:
    found = list(read_trajectories(path))
    for trajectory in found:
        trajectory.seconds = 0.0
        for call in trajectory.calls:
            call.run_s = call.queue_s = 0.0
    return found


def evaluations(run: Run) -> dict[str, list[Trajectory]]:
    return {p.name: trajectories(p) for p in sorted((run.path / "eval").glob("*.jsonl"))}


def checkpoint_bytes(run: Run, step: int) -> dict[str, bytes]:
    folder = run.checkpoints / f"step-{step:05d}"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.safetensors")}


def assert_equal_runs(a: Run, b: Run, step: int) -> None:
    assert metrics(a) == metrics(b)
    assert trajectories(a.trajectories) == trajectories(b.trajectories)
    assert evaluations(a) == evaluations(b)
    assert checkpoint_bytes(a, step) == checkpoint_bytes(b, step)
    summaries = [run.summary() for run in (a, b)]
    for summary in summaries:
        assert summary is not None
        del summary["seconds"], summary["versions"]  # someone may commit between two runs
    assert summaries[0] == summaries[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--die-in-checkpoint", type=int, default=0, help="the n-th, before its last file")
    arguments = parser.parse_args()
    original, saves = LocalLearner.save, iter(range(1, 1000))

    def save(self: LocalLearner, folder: Path) -> None:
        if next(saves) == arguments.die_in_checkpoint:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, folder)

    with mock.patch.object(LocalLearner, "save", save):
        recipe = Recipe.model_validate_json(arguments.recipe.read_text())
        go(recipe, arguments.folder, tool=dawdle, resume=arguments.resume, report=True)


if __name__ == "__main__":
    main()
