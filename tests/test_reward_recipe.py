"""All rewards together: from a recipe through a run to its metrics."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_kit import Server
from reward_kit import judged
from rollout_kit import CALL, Echo, play

from tests.train_kit import HELD_OUT, assert_equal_runs, go, letter_a, make_recipe, metrics, trajectories
from torl.config import Correctness, Efficiency, LLMJudge, Recipe
from torl.errors import RunHalted
from torl.learner.checkpoint import read_state
from torl.rewards.soundness import CHECKS
from torl.tasks import TaskSets
from torl.types import ToolResult

WEIGHTS = {
    "letter_a": 1.0,
    "correctness": 1.0,
    "executability": 0.5,
    "tool_efficiency": 0.4,
    "soundness": 0.1,
    "judge": 0.25,
}
TASKS = TaskSets(
    [replace(task, answer="a") for task in HELD_OUT.train],
    {"held": [replace(task, answer="a") for task in HELD_OUT.test["held"]]},
)
PARTS = [*(name for name in WEIGHTS if name != "soundness"), *(f"soundness/{check}" for check in CHECKS)]


def by_length(server: Server) -> str:
    """A score that depends on what is asked alone, not on when."""
    return json.dumps({"score": len(server.heard[-1][2]["messages"][1]["content"]) % 11})


def recipe_of(model: str, template: Path, server: Server, **changes: Any) -> Recipe:
    judge = {"base_url": server.url, "model": "judge-1", "backoff_s": 0.01, "max_concurrent": 1}
    return make_recipe(
        model,
        template,
        **{
            "steps": 4,
            "rewards": WEIGHTS,
            "correctness": {"how": "regex", "pattern": "(a)", "ignore_case": True},
            "efficiency": {"free_calls": 0, "redundant": 0.05, "unused": 0.05},
            **changes,
            "llm_judge": {**judge, **changes.get("llm_judge", {})},
        },
    )


@pytest.mark.usefixtures("one_thread")
def test_a_run_with_all_of_them_writes_their_parts(
    model: str, template: Path, tmp_path: Path, serve: Callable[..., Server]
) -> None:
    server = serve(by_length)
    run = go(recipe_of(model, template, server, steps=2), tmp_path / "run", tasks=TASKS)
    rows = metrics(run)
    assert len(rows) == 2
    for row in rows:
        assert all(f"reward/{part}" in row for part in PARTS)
        weighted = sum(WEIGHTS[part.partition("/")[0]] * row[f"reward/{part}"] for part in PARTS)
        assert row["reward/mean"] == pytest.approx(weighted)
        assert row["rollout/dropped"] == 0
    stored = trajectories(run.trajectories)
    assert all(sorted(t.reward_parts) == sorted(PARTS) for t in stored)
    assert {t.correct for t in stored} == {True, False}
    costs = {(t.correct, t.reward_parts["tool_efficiency"] < 0) for t in stored if len(t.calls) == 2}
    assert costs == {(True, True), (False, False)}  # only right ones pay
    evaluated = 2 * 2  # held-out tasks, before and after
    assert len(server.heard) == len(stored) + evaluated == 2 * 12 + 4


@pytest.mark.usefixtures("one_thread")
def test_a_spent_budget_stops_the_run_and_nothing_is_lost(
    model: str, template: Path, tmp_path: Path, serve: Callable[..., Server]
) -> None:
    """The step that could not be judged is made again: the result is that of a run without a limit."""
    server = serve(by_length)
    eval_ = {"before": False}
    whole = go(recipe_of(model, template, server, eval=eval_), tmp_path / "whole")
    limited = recipe_of(model, template, server, eval=eval_, llm_judge={"max_requests": 3 * 12 + 5})
    with pytest.raises(RunHalted, match=r"max_requests=41 is used up.*--resume"):
        go(limited, tmp_path / "run")
    assert read_state(tmp_path / "run/checkpoints/step-00003")["step"] == 3
    run = go(limited, tmp_path / "run", resume=True)
    assert_equal_runs_but_for_the_limit(run, whole)


def assert_equal_runs_but_for_the_limit(run: Any, whole: Any) -> None:
    for one in (run, whole):
        summary = json.loads((one.path / "summary.json").read_text())
        summary["recipe"]["llm_judge"]["max_requests"] = 0
        (one.path / "summary.json").write_text(json.dumps(summary))
    assert_equal_runs(run, whole, 4)


def test_the_parts_of_an_episode_by_hand(serve: Callable[..., Server]) -> None:
    """A real rollout of a policy that computes, computes the same again, and answers."""
    tool = Echo(lambda _: ToolResult("372\n", run_s=0.25))
    made = play([CALL, CALL, r"The answer is \boxed{372}."], [tool], max_tool_calls=2).trajectory
    judged(
        made,
        {name: weight for name, weight in WEIGHTS.items() if name != "letter_a"},
        config=Correctness(how="numeric"),
        efficiency=Efficiency(per_call=0.1, free_calls=1, per_second=0.2, redundant=0.05),
        llm_judge=LLMJudge(base_url=serve('{"score": 8}').url, model="m"),
    )
    assert made.reward_parts == {
        "correctness": 1.0,
        "executability": 0.0,
        "tool_efficiency": pytest.approx(-0.25),  # 0.1 + 0.2 * 0.5 s + 0.05
        **{f"soundness/{check}": 0.0 for check in CHECKS},
        "judge": 0.8,
    }
    assert made.reward == pytest.approx(1.0 - 0.4 * 0.25 + 0.25 * 0.8)
    assert letter_a(made, made.task) > 0
