"""The whole loss of an update, every loss and option, against one written down token by token."""

import copy
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.learner_kit import (
    BATCH,
    Gradients,
    alone,
    batch_of,
    gradients,
    learner,
    model_of,
    relative_error,
    sample_sets,
)
from torl.algorithms.settings import Algorithm
from torl.config import Learner, Rollout
from torl.learner.batch import Batch, Sample
from torl.learner.local import LocalLearner

pytestmark = pytest.mark.usefixtures("one_thread")

LONGEST = 40
MODEL, REFERENCE = model_of(seed=0), model_of(seed=1)

OPTIONS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "dual clip": {"dual_clip": 1.5},
    "gspo": {"loss": "gspo", "aggregation": "sequence_mean", "clip_low": 0.05, "clip_high": 0.1},
    "cispo": {"loss": "cispo", "clip_high": 0.28},
    "reinforce": {"loss": "reinforce"},
    "sequence mean": {"aggregation": "sequence_mean"},
    "constant": {"aggregation": "constant"},
    "entropy": {"entropy_coef": 0.3},
    "entropy by sequence": {"entropy_coef": 0.3, "aggregation": "sequence_mean"},
    "k2": {"kl_coef": 0.5, "kl": "k2"},
    "k3": {"kl_coef": 0.5, "kl": "k3", "aggregation": "constant"},
    "truncated": {"off_policy": "truncate"},
    "truncated sequences": {"off_policy": "truncate", "off_policy_level": "sequence"},
    "rejected": {"off_policy": "reject"},
    "rejected sequences": {"off_policy": "reject", "off_policy_level": "sequence", "off_policy_bound": 4.0},
    "all": {
        "entropy_coef": 0.1,
        "kl_coef": 0.1,
        "off_policy": "truncate",
        "dual_clip": 3.0,
        "clip_high": 0.28,
    },
}


def rows_of(model: Any, one: Sample) -> Tensor:
    """The logarithms of the distributions from which each id of a trajectory was drawn: (N, V)."""
    logits = model(torch.tensor([one.prompt_ids + one.ids])).logits[0]
    return torch.log_softmax(logits[len(one.prompt_ids) - 1 : -1], -1)


def expected_loss(samples: list[Sample], a: Algorithm, old: list[list[float]] | None) -> Tensor:
    """Token by token: a sum of scalars, each by the formulas of docs/algorithms.md."""
    total = torch.zeros((), dtype=torch.float64)
    lengths = [sum(s.loss_mask) for s in samples]
    trained = sum(n > 0 for n in lengths)
    for number, one in enumerate(samples):
        if not lengths[number]:
            continue
        rows = rows_of(MODEL, one)
        with torch.no_grad():
            reference = rows_of(REFERENCE, one)
        at = [n for n, trains in enumerate(one.loss_mask) if trains]
        new = {n: rows[n, one.ids[n]] for n in at}
        before = {n: rows.new_tensor(old[number][n]) if old else new[n].detach() for n in at}
        geometric = torch.exp(sum(new[n] - before[n] for n in at) / len(at))  # type: ignore[arg-type]
        gap = {n: float(before[n]) - one.sampler_logprobs[n] for n in at}
        for n in at:
            ratio = geometric if a.loss == "gspo" else torch.exp(new[n] - before[n])
            advantage = one.advantages[n]
            bounded = ratio.clamp(1 - a.clip_low, 1 + a.clip_high)
            if a.loss == "cispo":
                loss = -bounded.detach() * advantage * new[n]
            elif a.loss == "reinforce":
                loss = -advantage * new[n]
            else:
                gain = torch.minimum(ratio * advantage, bounded * advantage)
                if a.dual_clip and advantage < 0:
                    gain = torch.clamp(gain, min=a.dual_clip * advantage)
                loss = -gain
            rho = math.exp(sum(gap.values()) if a.off_policy_level == "sequence" else gap[n])
            if a.off_policy == "truncate":
                loss = loss * min(rho, a.off_policy_bound)
            if a.off_policy == "reject" and not 1 / a.off_policy_bound <= rho <= a.off_policy_bound:
                loss = loss * 0
            loss = loss + a.entropy_coef * (rows[n].exp() * rows[n]).sum()
            d = new[n] - reference[n, one.ids[n]]
            loss = loss + a.kl_coef * {"k2": d**2 / 2, "k3": torch.exp(-d) - 1 + d}[a.kl]
            share = {
                "token_mean": 1 / sum(lengths),
                "sequence_mean": 1 / (lengths[number] * trained),
                "constant": 1 / (trained * LONGEST),
            }
            total = total + loss * share[a.aggregation]
    return total


def subject_of(options: dict[str, Any], tokens: int = 10_000, **fields: Any) -> Gradients:
    algorithm = Algorithm(**options)
    reference = REFERENCE if algorithm.kl_coef else None
    rollout = Rollout(max_completion_tokens=LONGEST, max_observation_tokens=4)
    return Gradients(MODEL, algorithm, Learner(pack_tokens=tokens, **fields), rollout, reference=reference)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_gradient_is_that_of_the_loss_written_down(name: str) -> None:
    @settings(max_examples=12, deadline=None)
    @given(sample_sets(), st.sampled_from([1, 25, 10_000]), st.booleans())
    def check(samples: list[Sample], tokens: int, off_policy: bool) -> None:
        noise = random.Random(len(samples))
        old = None
        for one in samples:  # near the policy, so that corrections act on some and not on others
            near = zip(alone(MODEL, one), one.loss_mask, strict=True)
            one.sampler_logprobs = [v + noise.gauss(0, 0.5) if m else 0.0 for v, m in near]
        if off_policy:
            old = [[v + noise.gauss(0, 0.3) for v in alone(MODEL, one)] for one in samples]
            for one, values in zip(samples, old, strict=True):
                one.old_logprobs = values
        subject = subject_of(OPTIONS[name], tokens)
        metrics = subject.update(Batch(samples))
        wanted = expected_loss(samples, Algorithm(**OPTIONS[name]), old)
        if not wanted.requires_grad or not subject.seen:
            assert not subject.seen
            return
        found = gradients(MODEL, wanted)
        if all(float(g.abs().max()) < 1e-14 for g in found.values()):  # everything was rejected
            assert all(float(g.abs().max()) < 1e-14 for g in subject.seen[0].values())
            return
        assert relative_error(subject.seen[0], found) < 1e-9
        assert metrics["learner/updates"] == 1

    check()


@pytest.mark.parametrize("name", ["gspo", "cispo", "all"])
def test_neither_order_nor_packing_changes_the_gradient(name: str) -> None:
    batch = batch_of(*BATCH)
    whole, parts = subject_of(OPTIONS[name]), subject_of(OPTIONS[name], tokens=1)
    whole.update(batch)
    parts.update(Batch(batch.samples[::-1]))
    assert relative_error(parts.seen[0], whole.seen[0]) < 1e-9


def test_finite_differences_of_the_whole_loss() -> None:
    """The loss that update reports, moved along its gradient, changes as the gradient says."""
    batch = batch_of(*BATCH)
    for one in batch.samples:
        one.old_logprobs = [v - 0.05 for v in alone(MODEL, one)]
    options = {"clip_high": 0.5, "clip_low": 0.5}
    subject = subject_of(options)
    subject.update(batch)
    slope = subject.seen[0]
    norm = math.sqrt(sum(float(g.square().sum()) for g in slope.values()))
    ends = []
    for sign in (1, -1):
        moved = copy.deepcopy(MODEL)
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                parameter.add_(slope[name], alpha=sign * 1e-6 / norm)
        rollout = Rollout(max_completion_tokens=LONGEST, max_observation_tokens=4)
        there = Gradients(moved, Algorithm(**options), Learner(), rollout)
        ends.append(there.update(batch)["loss/policy"])
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(norm, rel=1e-6)


def test_samples_without_signal_count_where_the_loss_has_more_than_advantages() -> None:
    idle = batch_of(0.0, 0.0)
    plain = subject_of({})
    assert plain.update(idle)["learner/no_signal_updates"] == 1
    for options in ({"entropy_coef": 0.1}, {"kl_coef": 0.1}):
        subject = subject_of(options)
        assert subject.update(idle)["learner/updates"] == 1
        assert any(float(g.abs().max()) > 0 for g in subject.seen[0].values())


def test_metrics_of_the_ratio_to_the_sampler() -> None:
    batch = batch_of(*BATCH)
    for one in batch.samples:
        one.sampler_logprobs = [v - math.log(3) for v in alone(MODEL, one)]
    metrics = subject_of({"off_policy": "truncate"}).update(batch)
    assert metrics["learner/off_policy_ratio"] == pytest.approx(3)
    assert metrics["learner/off_policy_ratio_max"] == pytest.approx(3)
    assert metrics["learner/off_policy_beyond"] == 1
    assert "learner/off_policy_ratio" not in learner(MODEL, Gradients).update(batch)


def test_the_divergence_from_itself_is_nothing() -> None:
    rollout = Rollout(max_completion_tokens=LONGEST, max_observation_tokens=4)
    model = model_of()
    subject = LocalLearner(model, Algorithm(kl_coef=0.1), Learner(lr=1e-3), rollout, reference=model_of())
    assert subject.update(batch_of(*BATCH))["loss/kl"] == pytest.approx(0, abs=1e-12)
    assert subject.update(batch_of(*BATCH))["loss/kl"] > 0
