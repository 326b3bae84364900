"""The smallest environment: of a few answers to a prompt, one is worth most. Each algorithm must find
it."""

from typing import Any

import pytest
import torch

from tests.learner_kit import VOCABULARY, model_of, sample
from torl.algorithms.advantages import advantage_named
from torl.algorithms.settings import ADVANTAGES, LOSSES, Algorithm, Critic
from torl.config import Learner
from torl.learner.batch import Batch
from torl.learner.local import LocalLearner

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS, GROUP, UPDATES = ([1, 2],), 64, 60
ARMS = torch.arange(VOCABULARY) % 6  # an id's arm: an answer is two ids, so 36 answers count as different
BEST = (1, 5)

ALGORITHMS: dict[str, dict[str, Any]] = {
    **{name: {"advantage": name} for name in ADVANTAGES},
    **{name: {"loss": name, "epochs": 2} for name in LOSSES},
    "gspo by sequence": {"loss": "gspo", "aggregation": "sequence_mean", "epochs": 2},
    "constant": {"advantage": "dr_grpo", "aggregation": "constant"},
    "two epochs": {"epochs": 2, "clip_high": 0.28},
    "truncated": {"off_policy": "truncate"},
    "rejected": {"off_policy": "reject"},
    "entropy": {"entropy_coef": 0.01},
    "kl": {"kl_coef": 0.01},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_finds_the_best_answer(name: str) -> None:
    """Each right arm of an answer's two is worth half. At first the best has a chance of about 1 in 36."""
    algorithm = Algorithm(**ALGORITHMS[name])
    model, start = model_of(torch.float32), model_of(torch.float32)
    learner = LocalLearner(model, algorithm, Learner(lr=2e-3), reference=start, critic=Critic(lr=1e-2))
    advantage = advantage_named(algorithm.advantage)
    random = torch.Generator().manual_seed(0)
    chances: list[float] = []
    for _ in range(UPDATES):
        samples, chances, groups = [], [], []
        for prompt in PROMPTS:
            drawn, logprobs = draw(model, prompt, random)
            groups.append((torch.tensor([reward(ids) for ids in drawn]), prompt, drawn, logprobs))
            chances.append(chance_of(model, prompt))
        for given, (_, prompt, drawn, logprobs) in zip(
            advantage([g[0] for g in groups]), groups, strict=True
        ):
            for a, ids, sampled in zip(given.tolist(), drawn, logprobs, strict=True):
                samples.append(sample(prompt, ids, advantage=a, sampler_logprobs=sampled))
        learner.update(Batch(samples))
    assert min(chances) > 0.9, chances


def reward(ids: list[int]) -> float:
    return sum(int(ARMS[a]) == b for a, b in zip(ids, BEST, strict=True)) / 2


@torch.no_grad()
def draw(
    model: Any, prompt: list[int], random: torch.Generator
) -> tuple[list[list[int]], list[list[float]]]:
    """GROUP answers and the log-probabilities of their ids."""
    ids, found = torch.tensor([prompt] * GROUP), []
    for _ in BEST:
        chances = torch.softmax(model(ids).logits[:, -1], -1)
        drawn = torch.multinomial(chances, 1, generator=random)
        found.append(chances.gather(1, drawn).log())
        ids = torch.cat([ids, drawn], 1)
    return ids[:, len(prompt) :].tolist(), torch.cat(found, 1).tolist()


@torch.no_grad()
def chance_of(model: Any, prompt: list[int]) -> float:
    """The policy's probability of the best answer, over all pairs of ids that make it."""
    firsts = (BEST[0] == ARMS).nonzero()
    after = torch.cat([torch.tensor([prompt] * len(firsts)), firsts], 1)
    rows = torch.softmax(model(after).logits, -1)
    seconds = rows[:, -1, BEST[1] == ARMS].sum(1)
    return float(rows[0, len(prompt) - 1, firsts[:, 0]] @ seconds)
