"""Advantages: how good a trajectory was, judged against others. Pure functions.

Shapes: G trajectories of one group.
"""

import torch
from torch import Tensor


def grpo(rewards: Tensor, normalise_std: bool = True, eps: float = 1e-6) -> Tensor:
    """Group-relative advantages (G,) from rewards (G,).

        A_i = (r_i - mean(r)) / (std(r) + eps)

    with the unbiased standard deviation, as in the reference implementation of ToRL; without
    ``normalise_std`` it is A_i = r_i - mean(r) (Dr. GRPO, arXiv 2503.20783). A group whose
    rewards are all equal carries no signal: its advantages are exactly 0.
    Source: DeepSeekMath, arXiv 2402.03300, section 4.1.2. Needs G >= 2.
    """
    if len(rewards) < 2:
        return torch.zeros_like(rewards)
    if bool((rewards == rewards[0]).all()):  # exactly, where rounding of the mean would not be
        return torch.zeros_like(rewards)
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + eps) if normalise_std else centred
