"""From the rewards of a step's trajectories to their advantages."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from torl.algorithms.advantages import BatchAdvantage, advantage_named
from torl.algorithms.kl import KL
from torl.algorithms.settings import Algorithm
from torl.config import Recipe
from torl.learner.batch import Sample, sample_of
from torl.types import Group

RefLogprobs = Callable[[Sequence[Sample]], list[list[float]]]
"""The learner's: for each sample a number for each id, 0.0 where it does not train."""


def credit_for(recipe: Recipe, ref_logprobs: RefLogprobs) -> Callable[[Sequence[Group]], None]:
    """What the recipe does between rewards and advantages, as one function of a step's judged groups.
    Raises UserError when the recipe's own function cannot be imported."""
    algorithm = recipe.algorithm
    advantage = advantage_named(algorithm.advantage)
    weights = {"kl": 1.0, **recipe.rewards} if algorithm.per_part else None

    def credit(groups: Sequence[Group]) -> None:
        if algorithm.kl_coef and algorithm.kl_in == "reward":
            subtract_divergence(groups, ref_logprobs, algorithm)
        give_advantages(groups, advantage, weights)

    return credit


def subtract_divergence(groups: Sequence[Group], ref_logprobs: RefLogprobs, algorithm: Algorithm) -> None:
    """Lowers each trajectory's reward by kl_coef times the divergence from the reference, summed over the
    tokens that train, and notes it as the part ``kl``. The policy's side are the log-probabilities of the
    sampler."""
    trajectories = [t for group in groups for t in group.trajectories]
    for t, ref in zip(trajectories, ref_logprobs([sample_of(t) for t in trajectories]), strict=True):
        trained = [n for n, trains in enumerate(t.loss_mask) if trains]
        mine, theirs = _f64([t.sampler_logprobs[n] for n in trained]), _f64([ref[n] for n in trained])
        t.reward_parts["kl"] = -algorithm.kl_coef * float(KL[algorithm.kl](mine, theirs).sum())
        t.reward = (t.reward or 0.0) + t.reward_parts["kl"]


def give_advantages(
    groups: Sequence[Group], advantage: BatchAdvantage, part_weights: Mapping[str, float] | None = None
) -> None:
    """Fills in each trajectory's advantage from its group's rewards; with ``part_weights`` from each reward
    part apart, summed by the weight of the function that the part belongs to:

        A_i = sum over parts p of weight_p advantage(r_p)_i

    so that a part's scale does not decide how much it is heard. Source: GDPO, arXiv 2601.05242.
    """
    if part_weights is None:
        advantages = advantage([_f64(group.rewards) for group in groups])
    else:
        names = sorted({name for g in groups for t in g.trajectories for name in t.reward_parts})
        advantages = [torch.zeros(len(g.trajectories), dtype=torch.float64) for g in groups]
        for name in names:
            weight = part_weights.get(name, part_weights.get(name.split("/")[0], 1.0))
            of_part = advantage(
                [_f64([t.reward_parts.get(name, 0.0) for t in g.trajectories]) for g in groups]
            )
            advantages = [a + weight * part for a, part in zip(advantages, of_part, strict=True)]
    for group, found in zip(groups, advantages, strict=True):
        for trajectory, value in zip(group.trajectories, found.tolist(), strict=True):
            trajectory.advantage = value


def _f64(rewards: Sequence[float]) -> Tensor:
    return torch.tensor(rewards, dtype=torch.float64)
