"""From the rewards of a step's trajectories to their advantages."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torl.algorithms.advantages import BatchAdvantage
from torl.types import Group


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
