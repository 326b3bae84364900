"""Losses of one token each. Pure functions; what sums them up divides by a global count.

Shapes: M trained tokens, gathered from any number of trajectories.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class TokenLoss(NamedTuple):
    """``loss`` (M,) has a gradient; ``clipped`` (M,) says where the clip took it away."""

    loss: Tensor
    clipped: Tensor


def ppo_clip(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> TokenLoss:
    """The clipped surrogate, per token. All tensors (M,).

        r = exp(logprobs - old_logprobs)
        loss = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

    Source: PPO, arXiv 1707.06347, equation 7; two clip widths: DAPO, arXiv 2503.14476,
    equation 10. With one update a batch r is 1 and the gradient is that of -A logprobs.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    free = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return TokenLoss(-torch.minimum(free, clipped), clipped < free)
