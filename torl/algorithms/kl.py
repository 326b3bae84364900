"""Estimates of the divergence KL(policy || reference) from sampled tokens. Pure functions.

With d = logprobs - ref_logprobs at a token that the policy sampled; shapes (M,).
Source: J. Schulman, "Approximating KL divergence", 2020 (joschu.net/blog/kl-approx.html).
"""

from collections.abc import Callable

import torch
from torch import Tensor

Estimate = Callable[[Tensor, Tensor], Tensor]


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """d: unbiased, of either sign. As a loss it does nothing: the mean of its gradient is 0."""
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """d^2 / 2: biased as a value; its gradient is, on policy, that of the divergence."""
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """exp(-d) - 1 + d: unbiased, never negative (GRPO, arXiv 2402.03300, equation 4). Its gradient is, on
    policy, that of the divergence the other way round, KL(reference || policy)."""
    gap = ref_logprobs - logprobs
    return torch.expm1(gap) - gap


KL: dict[str, Estimate] = {"k1": k1, "k2": k2, "k3": k3}
