"""The loop on a tiny random model: what it learns, what it keeps, that it gives the same again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import torl
from tests.learner_kit import same, weights
from tests.train_kit import (
    TASKS,
    assert_equal_runs,
    checkpoint_bytes,
    dawdle,
    go,
    letter_a,
    make_model,
    make_recipe,
    metrics,
    parts_of,
    roll,
    trajectories,
)
from torl import config
from torl.algorithms.advantages import each, grpo
from torl.credit import give_advantages
from torl.errors import UserError, WorldFault
from torl.insight.catalog import lookup
from torl.learner.batch import Batch, sample_of
from torl.learner.checkpoint import newest_checkpoint, read_state
from torl.learner.local import LocalLearner
from torl.run import Run
from torl.types import Group, Task, Trajectory

pytestmark = pytest.mark.usefixtures("one_thread")


# What a run leaves


def test_a_run_leaves_everything(finished: Run) -> None:
    rows = metrics(finished)
    assert [row["step"] for row in rows] == list(range(6))
    assert all(lookup(name) for row in rows for name in row if name != "step")
    assert all(row["learner/updates"] == 1 and row["learner/skipped_updates"] == 0 for row in rows)
    kept = trajectories(finished.trajectories)
    assert len(kept) == 6 * 3 * 4
    assert [len({t.task.id for t in kept[n : n + 12]}) for n in range(0, 72, 12)] == [3] * 6
    assert any(len(t.calls) == 2 for t in kept), "the tool was used more than once in an episode"
    assert any(t.advantage for t in kept)
    for step, t in enumerate(kept):
        assert {v for v in t.versions if v >= 0} <= {step // 12}, "each step samples from the newest policy"
    assert finished.report.is_file()
    assert not list(finished.path.rglob(".*.tmp"))


def test_the_summary_has_the_promised_keys(finished: Run) -> None:
    summary = finished.summary()
    assert summary is not None
    promised = {"heldout_before", "heldout_after", "steps", "seconds", "seed", "recipe", "versions"}
    assert promised <= set(summary)
    for when in ("heldout_before", "heldout_after"):
        assert {"accuracy", "n", "ci95", "code_ratio", "pass_ratio"} == set(summary[when])
    assert (summary["steps"], summary["heldout_after"]["n"]) == (6, 2)
    assert summary["seconds"] > 0


def test_a_checkpoint_is_a_model_that_transformers_loads(finished: Run, model: str) -> None:
    folder = finished.checkpoints / "step-00006"
    loaded = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    masters = load_file(folder / "learner.safetensors")
    assert masters, "the learner's state lies beside it"
    trained = AutoModelForCausalLM.from_pretrained(model)
    state = {k.removeprefix("master."): v for k, v in masters.items() if k.startswith("master.")}
    trained.load_state_dict(state, strict=False)
    ids = torch.tensor([tokenizer("Say a: e").input_ids])
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, trained(ids).logits)
    assert not same(weights(loaded), weights(AutoModelForCausalLM.from_pretrained(model)))


def test_the_newest_checkpoints_are_kept(model: str, template: Path, tmp_path: Path) -> None:
    recipe = make_recipe(model, template, steps=4, checkpoint={"every": 1, "keep": 2})
    run = go(recipe, tmp_path / "run")
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["step-00003", "step-00004"]
    (run.checkpoints / "step-100000").mkdir()
    (run.checkpoints / "step-100000" / "state.json").write_text("{}")
    (run.checkpoints / "step-00005").mkdir()  # not complete
    newest = newest_checkpoint(run.checkpoints)
    assert newest is not None
    assert newest.name == "step-100000"


# Learning


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_reward_rises(template: Path, tmp_path: Path, dtype: str) -> None:
    """The letter a is one of 300 ids; after 25 steps it is a large part of what is written."""
    recipe = make_recipe(
        make_model(tmp_path / "model"),
        template,
        dtype=dtype,
        steps=25,
        prompts_per_step=4,
        group_size=8,
        learner={"lr": 2e-2},
        rollout={"max_completion_tokens": 16, "max_observation_tokens": 4},
        sampler={"max_sequences": 32},
        checkpoint={"every": 0},
    )
    rewards = [row["reward/mean"] for row in metrics(go(recipe, tmp_path / "run"))]
    assert sum(rewards[:3]) / 3 < 0.1
    assert sum(rewards[-3:]) / 3 > 0.4


def test_the_20_line_program(model: str, template: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Tasks as a list (nothing held out), a plain function as the tool, one as the reward."""
    monkeypatch.chdir(tmp_path)

    def calculator(expression: str) -> str:
        return str(len(expression))

    def brevity(trajectory: Trajectory, task: Task) -> float:
        return -float(len(trajectory.ids)) - len(task.answer)

    tasks = [torl.Task(f"add/{n}", f"What is {n} + {n}?", str(2 * n)) for n in range(8)]
    recipe = torl.Recipe.model_validate(
        make_recipe(model, template, steps=2).model_dump() | {"rewards": {"correctness": 1.0}}
    )
    run = torl.train(recipe, "runs/mine", tasks=tasks, tools=[calculator], rewards=[brevity])
    assert {"reward/brevity", "reward/correctness", "rollout/accuracy"} <= set(run.metrics()[-1])
    summary = run.summary()
    assert summary is not None
    assert (summary["heldout_before"], summary["heldout_after"], summary["heldout"]) == (None, None, {})
    assert summary["steps"] == 2
    with pytest.raises(UserError, match="holds a finished run"):  # torl.train is still the function
        torl.train(recipe, "runs/mine", tasks=tasks, tools=[calculator], rewards=[brevity])


def test_a_report_is_written_without_held_out_tasks_too(model: str, template: Path, tmp_path: Path) -> None:
    run = go(make_recipe(model, template, steps=1), tmp_path / "run", tasks=TASKS, report=True)
    assert run.report.is_file()


def test_without_tools(model: str, template: Path, tmp_path: Path) -> None:
    recipe = make_recipe(model, template, steps=2)
    run = go(recipe, tmp_path / "run", tool=None)
    kept = trajectories(run.trajectories)
    assert kept
    assert all(not t.calls and t.sampled == [1] * len(t.ids) for t in kept)


def test_evaluation_every_few_steps(model: str, template: Path, tmp_path: Path) -> None:
    recipe = make_recipe(model, template, steps=4, eval={"every": 2, "before": False})
    run = go(recipe, tmp_path / "run")
    rows = [any(name.startswith("heldout/held/") for name in row) for row in metrics(run)]
    assert rows == [False, True, False, False]  # the last one is the summary's
    assert sorted(p.name for p in (run.path / "eval").iterdir()) == [
        "after-held.jsonl",
        "step-00002-held.jsonl",
    ]
    summary = run.summary()
    assert summary is not None
    assert summary["heldout_before"] is None
    assert summary["heldout_after"]["n"] == 2


def test_evaluation_does_not_change_training(finished: Run, template: Path, tmp_path: Path) -> None:
    recipe = finished.recipe.model_copy(update={"eval": make_recipe("", template, eval={"every": 1}).eval})
    run = go(recipe, tmp_path / "run")
    assert trajectories(run.trajectories) == trajectories(finished.trajectories)
    assert checkpoint_bytes(run, 6) == checkpoint_bytes(finished, 6)


# Sampler and learner


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
def test_sampler_and_learner_agree_before_and_after_updates(
    model: str, template: Path, temperature: float
) -> None:
    """Every trained token of every trajectory, several calls in one, within 1e-4 in float32."""
    with parts_of(model, template, rollout={"temperature": temperature}) as parts:
        recipe = make_recipe(model, template)
        learner = LocalLearner(
            parts.model, recipe.algorithm, recipe.learner, config.Rollout(temperature=temperature)
        )
        storage = {n: p.data_ptr() for n, p in parts.model.named_parameters()}
        before, gaps, calls = weights(parts.model), [], 0
        for step in range(3):
            found = roll(parts, step)
            calls = max(calls, *(sum(c.executed for c in t.calls) for t in found))
            samples = [sample_of(t) for t in found]
            for t, values in zip(found, learner.logprobs(samples), strict=True):
                wanted = [v if m else 0.0 for v, m in zip(t.sampler_logprobs, t.loss_mask, strict=True)]
                gaps.append(max(abs(a - b) for a, b in zip(values, wanted, strict=True)))
            assert {v for t in found for v in t.versions} - {-1} == {step}
            learner.update(Batch(samples))
            parts.agent.sampler.set_weights(learner.updates)
        assert max(gaps) < 1e-4
        assert calls == 2
        assert {n: p.data_ptr() for n, p in parts.model.named_parameters()} == storage
        assert all(not torch.equal(before[n], p) for n, p in parts.model.named_parameters())


# Advantages of groups of any size


def test_groups_that_lost_trajectories() -> None:
    task = Task("t", "?", "1")
    groups = [
        Group(task, [Trajectory(task, n, [1], reward=r) for n, r in enumerate(rewards)])
        for rewards in ([], [1.0], [1.0, 1.0], [1.0, -1.0])
    ]
    give_advantages(groups, each(grpo))
    found = [[round(t.advantage, 3) for t in group.trajectories] for group in groups]
    assert found == [[], [0.0], [0.0, 0.0], [0.707, -0.707]]


def test_trajectories_lost_to_a_failing_reward_are_counted_not_trained(
    model: str, template: Path, tmp_path: Path
) -> None:
    """The groups of the first task keep none, others one, others all."""

    def fragile(trajectory: Trajectory, task: Task) -> float:
        number = int(task.id.rpartition("/")[2])
        if number % 3 == 0 or (number % 3 == 1 and trajectory.sample > 0):
            raise RuntimeError("no verdict")
        return letter_a(trajectory, task)

    recipe = make_recipe(
        model, template, steps=4, rewards={"fragile": 1.0}, rollout={"retries": 0}, checkpoint={"every": 0}
    )
    run = go(recipe, tmp_path / "run", tasks=TASKS, rewards=[fragile])
    sizes: dict[str, set[int]] = {}
    for t in trajectories(run.trajectories):
        sizes.setdefault(t.task.id, set()).add(t.sample)
    assert {len(numbers) for numbers in sizes.values()} == {1, 4}
    assert sum(row["rollout/dropped"] for row in metrics(run)) > 0
    assert all(row["learner/updates"] + row["learner/no_signal_updates"] == 1 for row in metrics(run))


def test_when_everything_is_lost_training_stops_and_can_go_on(finished: Run, tmp_path: Path) -> None:
    """A broken reward must not look like a run that learned nothing."""
    broken = True

    def fragile(trajectory: Trajectory, task: Task) -> float:
        if broken and task.kind == "letters" and max(trajectory.versions) >= 3:
            raise RuntimeError("the judge is away")
        return letter_a(trajectory, task)

    fragile.__name__ = "letter_a"
    with pytest.raises(WorldFault, match=r"step 3: every trajectory was lost.*--resume"):
        go(finished.recipe, tmp_path / "run", rewards=[fragile])
    assert read_state(tmp_path / "run/checkpoints/step-00003")["step"] == 3
    broken = False
    run = go(finished.recipe, tmp_path / "run", rewards=[fragile], resume=True)
    assert_equal_runs(run, finished, 6)


def test_steps_without_signal_pass_and_are_counted(model: str, template: Path, tmp_path: Path) -> None:
    def constant(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
        return 0.1 + 0.2

    recipe = make_recipe(model, template, steps=2, rewards={"constant": 1.0})
    run = go(recipe, tmp_path / "run", tasks=TASKS, rewards=[constant])
    assert all(row["learner/no_signal_updates"] == 1 for row in metrics(run))
    assert all(row["rollout/no_signal_ratio"] == 1 for row in metrics(run))
    trained = load_file(run.checkpoints / "step-00002/model/model.safetensors")
    assert same(trained, load_file(Path(model) / "model.safetensors"))


# The same again


def test_one_seed_gives_one_run_however_long_tools_take(finished: Run, tmp_path: Path) -> None:
    for n in range(2):
        assert_equal_runs(go(finished.recipe, tmp_path / str(n), tool=dawdle), finished, 6)


def test_another_seed_gives_another_run(finished: Run, tmp_path: Path) -> None:
    run = go(finished.recipe.model_copy(update={"seed": 1, "steps": 1}), tmp_path / "run")
    assert [t.ids for t in trajectories(run.trajectories)] != [
        t.ids for t in trajectories(finished.trajectories)[:12]
    ]
