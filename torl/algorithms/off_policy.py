"""Corrections where the sampler's distribution is not the learner's: another engine, other kernels, or an
older policy. Pure functions.

    rho = exp(old_logprobs - sampler_logprobs)

of each token, or of each trajectory: the product over its tokens. Shapes: M trained tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Correction = Callable[[Tensor, float], Tensor]
"""``(ratios (M,), bound) -> weights (M,)`` of the losses."""


def ratios(old_logprobs: Tensor, sampler_logprobs: Tensor, trajectory: Tensor, level: str) -> Tensor:
    """rho for each token (M,), at ``level`` "token" or "sequence"; ``trajectory`` (M,) says whose it is."""
    gaps = old_logprobs - sampler_logprobs
    if level == "sequence" and len(gaps):
        sums = gaps.new_zeros(int(trajectory.max()) + 1).index_add(0, trajectory, gaps)
        gaps = sums[trajectory]
    return torch.exp(gaps)


def truncate(ratios: Tensor, bound: float) -> Tensor:
    """min(rho, bound): truncated importance sampling. Source: Yao et al. 2025, "Your efficient RL framework
    secretly brings you off-policy RL training", which takes it by token with bound 2."""
    return ratios.clamp(max=bound)


def reject(ratios: Tensor, bound: float) -> Tensor:
    """1 where 1/bound <= rho <= bound, else 0: what the learner finds too unlike does not train.
    Source: masked importance sampling, as in verl's rollout correction."""
    return ((ratios <= bound) & (ratios >= 1 / bound)).to(ratios)


CORRECTIONS: dict[str, Correction] = {"truncate": truncate, "reject": reject}
