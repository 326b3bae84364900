"""How the losses of tokens become the loss of an update. Pure functions.

    loss = sum over trajectories s of weight[s] * (sum of its tokens' losses) / denominator

over all trajectories of the mini-batch, whatever packs they lie in, those without signal included.
Shapes: S trajectories, ``lengths`` their trained tokens.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Share(NamedTuple):
    weights: Tensor  # (S,)
    denominator: float


Aggregation = Callable[[Tensor, int], Share]
"""``(lengths (S,), max_completion_tokens) -> Share``."""


def token_mean(lengths: Tensor, longest: int) -> Share:  # noqa: ARG001
    """The mean over all tokens: long trajectories weigh more. Source: DAPO, arXiv 2503.14476, equation
    12."""
    return Share(torch.ones_like(lengths), max(1.0, float(lengths.sum())))


def sequence_mean(lengths: Tensor, longest: int) -> Share:  # noqa: ARG001
    """The mean over trajectories of the mean over their tokens: each trajectory weighs the same, and a
    token the less the longer its trajectory. Source: GRPO as published, arXiv 2402.03300, equation 3."""
    return Share(1 / lengths.clamp(min=1), max(1.0, float((lengths > 0).sum())))


def constant(lengths: Tensor, longest: int) -> Share:
    """The sum over tokens, divided by what does not depend on them: trajectories times
    max_completion_tokens. Source: Dr. GRPO, arXiv 2503.20783, section 3.1."""
    return Share(torch.ones_like(lengths), max(1.0, float((lengths > 0).sum()) * longest))


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "constant": constant,
}
