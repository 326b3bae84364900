"""The learner's whole loss, its updates and its metrics."""

import copy
import math
from typing import Any

import pytest
import torch

from tests.learner_kit import (
    BATCH,
    Gradients,
    alone,
    batch_of,
    learner,
    model_of,
    reference_loss,
    relative_error,
    weights,
)
from torl.insight.catalog import lookup
from torl.learner.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")

F64 = torch.float64


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
                    p.add_(direction[name], alpha=step)
            ends.append(float(reference_loss(moved, batch.samples).detach()))
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("tokens", [1, 12, 10_000])
def test_samples_without_signal_count_in_the_denominator_and_cost_nothing(
    monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    """Five trained tokens a sample: with three idle samples more the gradient is a quarter."""
    model = model_of()
    one, four = learner(model, Gradients, pack_tokens=tokens), learner(model, Gradients, pack_tokens=tokens)
    fed: list[int] = []
    for subject in (one, four):
        run = subject._forward.network.run
        monkeypatch.setattr(
            subject._forward.network,
            "run",
            lambda ids, *rest, run=run, **more: (fed.append(len(ids)), run(ids, *rest, **more))[1],
        )
    found_one = one.update(batch_of(1.0))
    found_four = four.update(batch_of(1.0, 0.0, 0.0, 0.0))
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
    original = subject._optimizer.adamw.step
    monkeypatch.setattr(subject._optimizer.adamw, "step", lambda: (steps.append(1), original())[1])
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
