"""What the learner holds: a bad gradient, the rate, masters, activations, save and load."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.learner_kit import (
    BATCH,
    VOCABULARY,
    Gradients,
    batch_of,
    learner,
    model_of,
    relative_error,
    same,
    sample,
    weights,
)
from tests.tiny import tiny_model
from torl import config
from torl.errors import UserError
from torl.learner.batch import Batch
from torl.learner.local import schedule
from torl.learner.masters import Masters
from torl.model.plain import Plain

pytestmark = pytest.mark.usefixtures("one_thread")

F64 = torch.float64


# No signal, and a gradient that is not finite


def test_a_batch_without_signal_changes_nothing_and_is_counted() -> None:
    model = model_of()
    before = weights(model)
    subject = learner(model, lr=1e-2, weight_decay=0.1)
    for batch in (batch_of(0.0, 0.0), Batch([]), Batch([sample([1], [])])):
        metrics = subject.update(batch)
        assert metrics["learner/no_signal_updates"] == 1
        assert metrics["learner/updates"] == metrics["learner/skipped_updates"] == 0
    assert same(weights(model), before)
    assert subject.updates == 0


def poison(patch: pytest.MonkeyPatch, subject: Any, value: float) -> None:
    """One hidden number that is not finite."""
    run = subject._forward.network.run

    def spoiled(*arguments: Any, **more: Any) -> Tensor:
        output: Tensor = run(*arguments, **more).clone()
        output[-1, 0] = value
        return output

    patch.setattr(subject._forward.network, "run", spoiled)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_update_that_is_not_finite_is_skipped_counted_and_in_the_end_stops(
    monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    model = model_of(torch.float32)
    subject = learner(model, lr=1e-2, max_bad_updates=3, weight_decay=0.1)
    subject.update(batch_of(*BATCH))
    before, state = weights(model), copy.deepcopy(subject._optimizer.adamw.state_dict())
    with monkeypatch.context() as patch:
        poison(patch, subject, value)
        for _ in range(2):
            metrics = subject.update(batch_of(*BATCH))
            assert (metrics["learner/skipped_updates"], metrics["learner/updates"]) == (1, 0)
    assert same(weights(model), before)
    assert str(subject._optimizer.adamw.state_dict()) == str(state)
    assert subject.updates == 1
    assert subject.update(batch_of(*BATCH))["learner/updates"] == 1  # and the count begins anew
    before = weights(model)
    poison(monkeypatch, subject, value)
    for _ in range(2):
        subject.update(batch_of(*BATCH))
    with pytest.raises(UserError, match=r"3 updates in a row.*learner.lr.*dtype=float32"):
        subject.update(batch_of(*BATCH))
    assert same(weights(model), before)


# The learning rate


def test_the_learning_rate_warms_up_over_updates() -> None:
    subject = learner(model_of(), lr=1e-3, warmup_steps=4)
    seen = [subject.update(batch_of(*BATCH))["learner/lr"] for _ in range(6)]
    assert seen == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])
    assert learner(model_of(), lr=1e-3).update(batch_of(*BATCH))["learner/lr"] == 1e-3


def test_the_learning_rate_decays_to_nothing_after_its_warm_up() -> None:
    settings = config.Learner(warmup_steps=2, decay_steps=4)
    shares = [schedule(updates, settings) for updates in range(8)]
    assert shares == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    subject = learner(model_of(), lr=1e-3, decay_steps=2)
    seen = [subject.update(batch_of(*BATCH))["learner/lr"] for _ in range(3)]
    assert seen == pytest.approx([1e-3, 0.5e-3, 0.0])


# Narrow weights


def test_small_updates_are_not_rounded_away() -> None:
    """A bfloat16 weight near 1 does not move by 1e-5; a hundred of them move it."""
    model = model_of(torch.bfloat16)
    subject = learner(model, lr=1e-5)
    before = weights(model)
    subject.update(batch_of(*BATCH))
    once = sum(int((weights(model)[n] != before[n]).sum()) for n in before)
    for _ in range(99):
        subject.update(batch_of(*BATCH))
    total = sum(p.numel() for p in model.parameters())
    moved = sum(int((weights(model)[n] != before[n]).sum()) for n in before)
    assert once < 0.2 * total
    assert moved > 0.25 * total
    for name, p in model.named_parameters():
        master = subject._optimizer.masters[name]
        assert master.dtype == torch.float32
        assert torch.equal(master.detach().to(torch.bfloat16), p)
        if name.endswith("norm.weight"):
            assert (
                float((master.detach() - before[name].float()).abs().max()) > 3e-4
            )  # though none rounds up


def test_wide_weights_are_their_own_masters() -> None:
    model = model_of(torch.float32)
    for name, master in Masters(model, Plain(6, 2, 8)).by_name.items():
        assert master is dict(model.named_parameters())[name]


def test_gradients_of_packs_are_summed_in_float32() -> None:
    model = model_of(torch.bfloat16)
    subject = learner(model, Gradients, pack_tokens=1)
    subject.update(batch_of(*[1.0, -1.0] * 8))
    wide = model_of(F64)
    wide.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    reference = learner(wide, Gradients)
    reference.update(batch_of(*[1.0, -1.0] * 8))
    assert all(g.dtype == torch.float32 for g in subject.seen[0].values())
    assert relative_error({n: g.double() for n, g in subject.seen[0].items()}, reference.seen[0]) < 0.05


# Activation checkpointing


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_recomputed_activations_give_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """Bit for bit, with every kind of dropout in the configuration."""
    fields = {"vocab_size": VOCABULARY, "dtype": F64, "attention_dropout": 0.5}
    plain = learner(tiny_model(family, **fields), Gradients, pack_tokens=12)
    model = tiny_model(family, **fields)
    recomputing = learner(model, Gradients, activation_checkpointing=True, pack_tokens=12)
    calls: list[int] = []
    layer = recomputing._forward.network._layer
    monkeypatch.setattr(
        recomputing._forward.network, "_layer", lambda n, *rest: (calls.append(n), layer(n, *rest))[1]
    )
    plain.update(batch_of(*BATCH))
    recomputing.update(batch_of(*BATCH))
    assert same(plain.seen[0], recomputing.seen[0])
    packs = calls.count(0) / 2
    assert packs == int(packs) > 1  # each layer ran twice in each pack
    assert plain.logprobs(batch_of(1.0).samples) == recomputing.logprobs(batch_of(1.0).samples)


# Save and load


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_next_update_after_loading_is_bit_identical(tmp_path: Path, dtype: torch.dtype) -> None:
    settings = {"lr": 1e-3, "warmup_steps": 10, "weight_decay": 0.01}
    first = learner(model_of(dtype), **settings)
    for n in range(3):
        first.update(batch_of(*BATCH, length=4 + n))
    first.save(tmp_path)
    second = learner(model_of(dtype, seed=1), **settings)
    second.load(tmp_path, first.updates)
    assert same(weights(first.model), weights(second.model))
    assert same(first._optimizer.masters, second._optimizer.masters)
    assert second.updates == 3
    for n in range(2):
        a = first.update(batch_of(*BATCH, length=4 + n))
        b = second.update(batch_of(*BATCH, length=4 + n))
        assert a == b
    assert same(weights(first.model), weights(second.model))
    assert same(first._optimizer.masters, second._optimizer.masters)


def test_before_the_first_update_there_is_no_optimizer_state_to_save(tmp_path: Path) -> None:
    first = learner(model_of())
    first.save(tmp_path)
    second = learner(model_of(seed=1))
    second.load(tmp_path, 0)
    assert first.update(batch_of(*BATCH)) == second.update(batch_of(*BATCH))


@pytest.mark.parametrize("damage", ["gone", "cut", "another model's"])
def test_a_damaged_state_is_named(tmp_path: Path, damage: str) -> None:
    learner(model_of()).save(tmp_path)
    path = tmp_path / "learner.safetensors"
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    model = tiny_model("qwen2", vocab_size=VOCABULARY) if "model" in damage else model_of()
    before = weights(model)
    with pytest.raises(UserError, match=r"damaged.*remove it to go on from the one before"):
        learner(model).load(tmp_path, 3)
    assert same(weights(model), before)
