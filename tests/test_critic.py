"""PPO's critic: what it learns, what the policy gets from it, and that it is saved."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.learner_kit import BATCH, Gradients, batch_of, model_of, relative_error, same, sample, weights
from torl.algorithms.settings import Algorithm, Critic
from torl.config import Learner
from torl.learner.batch import Batch
from torl.learner.local import LocalLearner

pytestmark = pytest.mark.usefixtures("one_thread")

PPO = Algorithm(advantage="gae")


def ppo(model: Any, kind: type[LocalLearner] = LocalLearner, lr: float = 1e-3, **critic: Any) -> Any:
    settings = {"clip": 0.0, "lr": 1e-2, "whiten": False} | critic
    return kind(model, PPO, Learner(lr=lr), critic=Critic(**settings))


def test_at_first_the_advantage_is_the_return() -> None:
    """The head begins at 0, so with lambda and gamma 1 each token's advantage is its trajectory's
    reward."""
    batch = batch_of(*BATCH)
    plain = Gradients(model_of(), Algorithm(), Learner())
    plain.update(batch_of(*BATCH))
    subject = ppo(model_of(), Gradients)
    metrics = subject.update(batch)
    assert relative_error(subject.seen[0], plain.seen[0]) < 1e-12
    assert [s.advantages[0] for s in batch.samples] == list(BATCH)
    assert metrics["critic/value"] == 0
    assert metrics["critic/explained_variance"] == 0


def test_gae_is_over_trained_tokens_and_ends_with_the_reward() -> None:
    """Untrained ids take no time: two of them in between change nothing."""
    subject = ppo(model_of(), gamma=0.5, gae_lambda=1.0)
    one = sample([1, 2], [3, 4, 5, 6, 7], [1, 1, 0, 0, 1], advantage=1.0)
    subject.update(Batch([one]))
    assert one.advantages == [0.25, 0.5, 0.0, 0.0, 1.0]
    assert one.returns == [0.25, 0.5, 0.0, 0.0, 1.0]


def test_gae_by_turn_shares_a_turns_advantage() -> None:
    subject = ppo(model_of(), gamma=0.5, gae_lambda=1.0, by_turn=True)
    one = sample([1, 2], [3, 4, 5, 6, 7], [1, 1, 0, 1, 1], advantage=1.0, turn_ends=[2, 5])
    subject.update(Batch([one]))
    assert one.advantages == [0.5, 0.5, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("backbone", ["own", "shared"])
def test_the_critic_learns_which_prompts_are_worth_more(backbone: str) -> None:
    """Two prompts whose reward is always 1 and always 0."""
    subject = ppo(model_of(torch.float32), lr=1e-9, backbone=backbone)
    found = {}
    for _ in range(60):
        batch = batch_of(1.0, 1.0, 0.0, 0.0)
        found = subject.update(batch)
    assert found["critic/explained_variance"] > 0.9
    assert found["loss/value"] < 0.02
    assert all(
        abs(a) < 0.5 for s in batch.samples for a in s.advantages
    )  # little is left to be surprised by


def test_a_shared_backbone_is_left_to_the_policy() -> None:
    """The policy's gradient is that without a critic, and its weights are what its own update made them."""
    subject, plain = (
        ppo(model_of(), backbone="shared"),
        LocalLearner(model_of(), Algorithm(), Learner(lr=1e-3)),
    )
    subject.update(batch_of(*BATCH))
    plain.update(batch_of(*BATCH))
    assert same(weights(subject.model), weights(plain.model))


def test_while_the_critic_warms_up_the_policy_waits() -> None:
    model = model_of(torch.float32)
    subject = ppo(model, warmup_updates=2)
    before = weights(model)
    for _ in range(2):
        metrics = subject.update(batch_of(*BATCH))
        assert (metrics["learner/updates"], metrics["critic/warmup_updates"]) == (0, 1)
        assert same(weights(model), before)
    assert subject.update(batch_of(*BATCH))["learner/updates"] == 1
    assert not same(weights(model), before)


@pytest.mark.parametrize("backbone", ["own", "shared"])
def test_after_loading_it_goes_on_bit_by_bit(tmp_path: Path, backbone: str) -> None:
    first = ppo(model_of(torch.bfloat16), backbone=backbone, clip=0.2, whiten=True)
    first.update(batch_of(*BATCH))
    first.save(tmp_path)
    second = ppo(copy.deepcopy(first.model), backbone=backbone, clip=0.2, whiten=True)
    second.load(tmp_path, first.updates)
    a, b = first.update(batch_of(*BATCH)), second.update(batch_of(*BATCH))
    assert a == b
    assert same(first._optimizer.masters, second._optimizer.masters)
    assert same(first._critic._optimizer.masters, second._critic._optimizer.masters)


def test_whitened_advantages_and_their_metrics() -> None:
    batch = batch_of(*BATCH)
    subject = ppo(model_of(), whiten=True)
    metrics = subject.update(batch)
    found = [s.advantages[n] for s in batch.samples for n in s.trained]
    assert sum(found) == pytest.approx(0)
    assert math.sqrt(sum(a * a for a in found) / (len(found) - 1)) == pytest.approx(1)
    assert {"loss/value", "critic/grad_norm", "critic/value"} <= metrics.keys()
    equal = subject.update(batch_of(1.0, 1.0))
    assert "critic/explained_variance" not in equal  # there was nothing to explain
