"""The learner: log-probabilities, updates, masters, what a bad gradient does, save and load."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.learner_kit import (
    VOCABULARY,
    Gradients,
    alone,
    exact,
    learner,
    one_thread,  # noqa: F401
    reference_loss,
    relative_error,
    same,
    sample,
    weights,
)
from tests.tiny import tiny_model
from torl.errors import UserError
from torl.insight.catalog import lookup
from torl.learner import logprobs
from torl.learner.batch import Batch, Sample
from torl.learner.logprobs import chosen_logprobs
from torl.learner.masters import Masters

pytestmark = pytest.mark.usefixtures("one_thread")

F64 = torch.float64


def model_of(dtype: torch.dtype = F64, seed: int = 0, **fields: Any) -> Any:
    model = tiny_model("llama", tied=True, vocab_size=VOCABULARY, dtype=dtype, seed=seed, **fields)
    return exact(model) if dtype == F64 else model


def batch_of(*advantages: float, length: int = 6) -> Batch:
    """One sample for each advantage, in groups of two that share a prompt."""
    return Batch(
        [
            sample(
                [1, 2, 3 + n // 2],
                [(7 * n + k * k) % VOCABULARY for k in range(length)],
                [1, 1, 0, 1, 1, 1][:length],
                advantage,
                name=f"t#{n}",
            )
            for n, advantage in enumerate(advantages)
        ]
    )


BATCH = (1.0, -1.0, 0.5, -0.5)


# chosen_logprobs


@pytest.mark.parametrize("chunk", [1, 3, 512])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
def test_chosen_logprobs_equals_log_softmax(
    monkeypatch: pytest.MonkeyPatch, chunk: int, temperature: float
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK", chunk)
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, dtype=F64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=F64, requires_grad=True)
    targets = torch.randint(11, (7,))
    upstream = torch.randn(7, dtype=F64)

    found, entropy = chosen_logprobs(hidden, weight, targets, temperature)
    assert not entropy.requires_grad
    grads = torch.autograd.grad((found * upstream).sum(), (hidden, weight))

    rows = torch.log_softmax(hidden @ weight.T / temperature, -1)
    wanted = rows.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy, -(rows.exp() * rows).sum(-1), rtol=1e-12, atol=1e-12)
    for a, b in zip(grads, torch.autograd.grad((wanted * upstream).sum(), (hidden, weight)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)

    def function(h: Tensor, w: Tensor) -> Tensor:
        return chosen_logprobs(h, w, targets, temperature)[0]

    assert torch.autograd.gradcheck(function, (hidden, weight))


def test_chosen_logprobs_of_nothing_and_of_certainty() -> None:
    hidden = torch.zeros(0, 5, requires_grad=True)
    found, entropy = chosen_logprobs(hidden, torch.ones(11, 5), torch.zeros(0, dtype=torch.long))
    assert len(found) == len(entropy) == 0
    found.sum().backward()
    sure = torch.tensor([[1e4, 0.0]])
    found, entropy = chosen_logprobs(sure, torch.eye(2), torch.tensor([0]))
    assert (found.item(), entropy.item()) == (0.0, 0.0)


def test_chosen_logprobs_of_narrow_weights_are_wide() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(9, 16).bfloat16(), torch.randn(33, 16).bfloat16().requires_grad_()
    targets = torch.arange(9)
    found, entropy = chosen_logprobs(hidden, weight, targets)
    wanted = torch.log_softmax((hidden @ weight.T).float(), -1)[targets, targets]
    assert found.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(found, wanted)
    found.sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16


# The loss


def test_the_loss_by_finite_differences() -> None:
    """The learner's gradient against (loss(w + e) - loss(w - e)) / 2e in random directions."""
    model = model_of()
    batch = batch_of(*BATCH)
    for one in batch.samples:
        one.old_logprobs = [v + 0.1 * (n % 3 - 1) for n, v in enumerate(alone(model, one))]
    subject = learner(model, Gradients)
    subject.update(batch)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        direction = {
            n: torch.randn(p.shape, generator=generator, dtype=F64) for n, p in model.named_parameters()
        }
        slope = sum(float((subject.seen[0][n] * d).sum()) for n, d in direction.items())
        ends = []
        for step in (1e-6, -1e-6):
            moved = copy.deepcopy(model)
            with torch.no_grad():
                for name, p in moved.named_parameters():
                    p += step * direction[name]
            ends.append(float(reference_loss(moved, batch.samples).detach()))
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("tokens", [1, 12, 10_000])
def test_samples_without_signal_count_in_the_denominator_and_cost_nothing(tokens: int) -> None:
    """Five trained tokens a sample: with three idle samples more the gradient is a quarter."""
    model = model_of()
    one, four = learner(model, Gradients, pack_tokens=tokens), learner(model, Gradients, pack_tokens=tokens)
    fed: list[int] = []
    hook = model.model.register_forward_pre_hook(
        lambda _, __, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    found_one = one.update(batch_of(1.0))
    found_four = four.update(batch_of(1.0, 0.0, 0.0, 0.0))
    hook.remove()
    assert fed == [8, 8]
    assert (found_one["learner/trained_tokens"], found_four["learner/trained_tokens"]) == (5, 20)
    quarter = {n: g / 4 for n, g in one.seen[0].items()}
    assert relative_error(four.seen[0], quarter) < 1e-12
    assert found_four["loss/policy"] == pytest.approx(found_one["loss/policy"] / 4)


def test_one_update_is_one_step_of_adamw() -> None:
    model = model_of()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(
        plain.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=False
    )
    subject = learner(model, lr=1e-3, beta2=0.99, weight_decay=0.1, max_grad_norm=0.5, pack_tokens=10)
    for n in range(3):
        batch = batch_of(*BATCH, length=4 + n % 3)
        optimizer.zero_grad()
        reference_loss(plain, batch.samples).backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        metrics = subject.update(batch)
        assert metrics["learner/grad_norm"] == pytest.approx(float(norm), rel=1e-6)
        assert metrics["learner/grad_norm"] > 0.5  # so clipping acted
    assert relative_error(weights(model), weights(plain)) < 1e-9
    assert subject.updates == 3


def test_the_loss_of_what_was_rewarded_falls() -> None:
    model = model_of(torch.float32)
    subject = learner(model, lr=1e-3)
    batch = batch_of(1.0, -1.0)
    before = [sum(v) for v in subject.logprobs(batch.samples)]
    for _ in range(5):
        subject.update(batch)
    after = [sum(v) for v in subject.logprobs(batch.samples)]
    assert after[0] > before[0]
    assert after[1] < before[1]


# Mini-batches and epochs


def count_steps(subject: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps: list[int] = []
    original = subject._optimizer.step
    monkeypatch.setattr(subject._optimizer, "step", lambda: (steps.append(1), original())[1])
    return steps


@pytest.mark.parametrize(("mini_batches", "epochs"), [(1, 1), (2, 1), (1, 3), (2, 2), (4, 2)])
def test_every_configured_update_is_made(
    monkeypatch: pytest.MonkeyPatch, mini_batches: int, epochs: int
) -> None:
    subject = learner(model_of(), algorithm={"mini_batches": mini_batches, "epochs": epochs}, lr=1e-4)
    steps = count_steps(subject, monkeypatch)
    metrics = subject.update(batch_of(*BATCH))
    assert len(steps) == subject.updates == metrics["learner/updates"] == mini_batches * epochs


def test_each_mini_batch_is_normalised_by_its_own_trained_tokens() -> None:
    model = model_of()
    batch = Batch([*batch_of(1.0, -1.0).samples, *batch_of(0.5, 0.0, length=3).samples])
    subject = learner(model, Gradients, algorithm={"mini_batches": 2})
    subject.update(batch)
    for found, part in zip(subject.seen, batch.split(2), strict=True):
        single = learner(model, Gradients)
        single.update(Batch([copy.copy(s) for s in part.samples]))
        assert relative_error(found, single.seen[0]) < 1e-9


def test_later_updates_are_off_policy_and_clipped() -> None:
    """The ratio's denominator stays what it was before the first update of this batch."""
    model = model_of()
    batch = batch_of(1.0, -1.0)
    before = learner(model).logprobs(batch.samples)
    subject = learner(model, algorithm={"epochs": 6, "clip_low": 0.1, "clip_high": 0.1}, lr=3e-3)
    metrics = subject.update(batch)
    assert [s.old_logprobs for s in batch.samples] == before
    assert metrics["learner/clip_ratio"] > 0.1
    assert metrics["learner/ratio_mean"] != 1.0
    # All tokens beyond the clip: the next update has no gradient at all.
    far = learner(model, Gradients, algorithm={"clip_low": 0.1, "clip_high": 0.1})
    for one in batch.samples:
        shift = 1.0 if one.advantages[0] > 0 else -1.0
        one.old_logprobs = [v - shift for v in alone(model, one)]
    metrics = far.update(batch)
    assert metrics["learner/clip_ratio"] == 1.0
    assert all(not g.any() for g in far.seen[0].values())


def test_the_first_of_several_updates_is_on_policy() -> None:
    model = model_of()
    several = learner(model, Gradients, algorithm={"epochs": 2})
    single = learner(model, Gradients)
    several.update(batch_of(*BATCH))
    single.update(batch_of(*BATCH))
    assert relative_error(several.seen[0], single.seen[0]) < 1e-9


def test_old_logprobs_from_the_sampler_are_the_samplers() -> None:
    model = model_of()
    batch = batch_of(1.0, -1.0)
    for one in batch.samples:
        one.sampler_logprobs = [v - 0.05 if v else 0.0 for v in alone(model, one)]
    off = learner(model, Gradients, algorithm={"epochs": 2, "old_logprobs": "sampler"})
    metrics = off.update(batch)
    assert metrics["learner/ratio_mean"] == pytest.approx(math.exp(0.05), rel=1e-5)
    on = learner(model, Gradients)
    on.update(batch_of(1.0, -1.0))
    scaled = {n: g * math.exp(0.05) for n, g in on.seen[0].items()}
    assert relative_error(off.seen[0], scaled) < 1e-9
    assert metrics["sampler/logprob_gap"] == pytest.approx(0.05, rel=1e-4)


# Metrics


def test_metrics_are_means_over_trained_tokens_however_packed() -> None:
    model = model_of()
    found = [learner(model, Gradients, pack_tokens=t).update(batch_of(*BATCH)) for t in (1, 10_000)]
    assert found[0] == pytest.approx(found[1], rel=1e-6, abs=1e-9)
    logits = []
    for one in batch_of(*BATCH).samples:
        with torch.no_grad():
            rows = model(torch.tensor([one.prompt_ids + one.ids])).logits[0, 2:-1]
        logits += [row for row, trains in zip(rows, one.loss_mask, strict=True) if trains]
    entropy = torch.distributions.Categorical(logits=torch.stack(logits)).entropy().mean()
    assert found[0]["loss/entropy"] == pytest.approx(entropy.item(), abs=1e-6)
    assert found[0]["learner/ratio_mean"] == 1.0
    assert found[0]["learner/clip_ratio"] == 0.0


def test_every_metric_is_in_the_catalogue() -> None:
    for advantages in (BATCH, (0.0, 0.0)):
        for name in learner(model_of(), algorithm={"epochs": 2}).update(batch_of(*advantages)):
            assert lookup(name) is not None, name


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


def poison(model: Any, value: float) -> Any:
    """One hidden number that is not finite."""

    def hook(_: Any, __: Any, output: Tensor) -> Tensor:
        spoiled = output.clone()
        spoiled[..., -1, 0] = value
        return spoiled

    return model.model.norm.register_forward_hook(hook)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_update_that_is_not_finite_is_skipped_counted_and_in_the_end_stops(value: float) -> None:
    model = model_of(torch.float32)
    subject = learner(model, lr=1e-2, max_bad_updates=3, weight_decay=0.1)
    subject.update(batch_of(*BATCH))
    before, state = weights(model), copy.deepcopy(subject._optimizer.state_dict())
    hook = poison(model, value)
    for _ in range(2):
        metrics = subject.update(batch_of(*BATCH))
        assert (metrics["learner/skipped_updates"], metrics["learner/updates"]) == (1, 0)
    hook.remove()
    assert same(weights(model), before)
    assert str(subject._optimizer.state_dict()) == str(state)
    assert subject.updates == 1
    assert subject.update(batch_of(*BATCH))["learner/updates"] == 1  # and the count begins anew
    before = weights(model)
    poison(model, value)
    with pytest.raises(UserError, match="3 updates in a row.*learner.lr.*dtype=float32"):
        for _ in range(3):
            subject.update(batch_of(*BATCH))
    assert same(weights(model), before)
    assert all(p.grad is None for p in model.parameters())


# The learning rate


def test_the_learning_rate_warms_up_over_updates() -> None:
    subject = learner(model_of(), lr=1e-3, warmup_steps=4)
    seen = [subject.update(batch_of(*BATCH))["learner/lr"] for _ in range(6)]
    assert seen == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])
    assert learner(model_of(), lr=1e-3).update(batch_of(*BATCH))["learner/lr"] == 1e-3


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
        master = subject._masters.by_name[name]
        assert master.dtype == torch.float32
        assert torch.equal(master.detach().to(torch.bfloat16), p)
        if name.endswith("norm.weight"):
            assert (
                float((master.detach() - before[name].float()).abs().max()) > 3e-4
            )  # though none rounds up


def test_wide_weights_are_their_own_masters() -> None:
    model = model_of(torch.float32)
    for name, master in Masters(model).by_name.items():
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
def test_recomputed_activations_give_the_same_gradients(family: str) -> None:
    """Bit for bit, with every kind of dropout in the configuration."""
    fields = {"vocab_size": VOCABULARY, "dtype": F64, "attention_dropout": 0.5}
    plain = learner(tiny_model(family, **fields), Gradients, pack_tokens=12)
    model = tiny_model(family, **fields)
    recomputing = learner(model, Gradients, activation_checkpointing=True, pack_tokens=12)
    calls: list[int] = []
    model.model.layers[0].mlp.register_forward_hook(lambda *_: calls.append(1))
    plain.update(batch_of(*BATCH))
    recomputing.update(batch_of(*BATCH))
    assert same(plain.seen[0], recomputing.seen[0])
    packs = len(calls) / 2
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
    assert same(first._masters.by_name, second._masters.by_name)
    assert second.updates == 3
    for n in range(2):
        a = first.update(batch_of(*BATCH, length=4 + n))
        b = second.update(batch_of(*BATCH, length=4 + n))
        assert a == b
    assert same(weights(first.model), weights(second.model))
    assert same(first._masters.by_name, second._masters.by_name)


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
    with pytest.raises(UserError, match="damaged.*remove it to go on from the one before"):
        learner(model).load(tmp_path, 3)
    assert same(weights(model), before)
