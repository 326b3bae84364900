"""Advantages: how good a trajectory was, judged against others. Pure functions.

Shapes: G trajectories of one group. To add one: a function from rewards (G,) to advantages
(G,), with its formula and its paper, and its name in ``ADVANTAGES``, here and in config.py; or
keep it in a module of yours and name its import path in the recipe.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from torl.imports import import_object

Advantage = Callable[[Tensor], Tensor]


def grpo(rewards: Tensor, eps: float = 1e-6) -> Tensor:
    """Group-relative advantages (G,) from rewards (G,).

        A_i = (r_i - mean(r)) / (std(r) + eps)

    with the unbiased standard deviation, as in the reference implementation of ToRL. A group
    whose rewards are all equal carries no signal: its advantages are exactly 0.
    Source: DeepSeekMath, arXiv 2402.03300, section 4.1.2. Needs G >= 2.
    """
    centred = dr_grpo(rewards)
    return centred / (rewards.std() + eps) if len(rewards) > 1 else centred


def dr_grpo(rewards: Tensor) -> Tensor:
    """Advantages (G,) without the division, which weighs easy and hard tasks more.

        A_i = r_i - mean(r)

    Source: Dr. GRPO, arXiv 2503.20783, section 3.2. Equal rewards give exactly 0.
    """
    if bool((rewards == rewards[:1]).all()):  # exactly, where rounding of the mean would not be
        return torch.zeros_like(rewards)
    return rewards - rewards.mean()


ADVANTAGES: dict[str, Advantage] = {"grpo": grpo, "dr_grpo": dr_grpo}


def advantage_named(name: str) -> Advantage:
    """A built-in advantage, or the user's at "pkg.module:function". Raises UserError."""
    if name in ADVANTAGES:
        return ADVANTAGES[name]
    found: Advantage = import_object(name, "algorithm.advantage")
    return found
