"""Policy losses of one token each. Pure functions; what sums them up is in aggregation.py.

To add one: a function ``(tokens, settings) -> TokenLoss`` with its formula and its paper, and its name in
``LOSSES``, here and in config.py; or keep it in a module of yours and name its import path in the recipe.

Shapes: M trained tokens, of S trajectories that lie one behind the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torl.algorithms.settings import Algorithm
from torl.imports import import_object


@dataclass(frozen=True)
class Tokens:
    """What a loss may know of the trained tokens of a pack. A trajectory is never split over packs."""

    logprobs: Tensor  # (M,) under the policy as it is now; the only one with a gradient
    old_logprobs: Tensor  # (M,) before the first update on this batch
    advantages: Tensor  # (M,)
    trajectory: Tensor  # (M,) int64, 0 to S - 1: whose token it is

    def mean_of_each(self, values: Tensor) -> Tensor:
        """Each token's own trajectory's mean of ``values``: (M,)."""
        if not len(values):
            return values
        size = int(self.trajectory.max()) + 1
        sums = values.new_zeros(size).index_add(0, self.trajectory, values)
        counts = torch.bincount(self.trajectory, minlength=size).clamp(min=1)
        return (sums / counts)[self.trajectory]


class TokenLoss(NamedTuple):
    """``loss`` (M,) has a gradient; ``clipped`` (M,) says where the clip acted."""

    loss: Tensor
    clipped: Tensor


PolicyLoss = Callable[[Tokens, Algorithm], TokenLoss]


def ppo(tokens: Tokens, settings: Algorithm) -> TokenLoss:
    """The clipped surrogate.

        r = exp(logprobs - old_logprobs)
        loss = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
        with dual_clip c > 0, where A < 0: at most -c A

    Source: PPO, arXiv 1707.06347, equation 7; two clip widths: DAPO, arXiv 2503.14476, equation 10; dual
    clip: arXiv 1912.09729. With one update a batch r is 1 and the gradient is that of
    -A logprobs.
    """
    return _clipped_surrogate(tokens.logprobs - tokens.old_logprobs, tokens, settings)


def gspo(tokens: Tokens, settings: Algorithm) -> TokenLoss:
    """The clipped surrogate with one ratio a trajectory, the geometric mean of its tokens'.

        s = exp(mean over the trajectory of (logprobs - old_logprobs))
        loss = -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)

    Source: GSPO, arXiv 2507.18071, equations 5 and 7, whose mean over trajectories is
    ``aggregation: sequence_mean`` and whose widths are 3e-4 and 4e-4: s moves far less than r.
    """
    return _clipped_surrogate(tokens.mean_of_each(tokens.logprobs - tokens.old_logprobs), tokens, settings)


def cispo(tokens: Tokens, settings: Algorithm) -> TokenLoss:
    """REINFORCE, weighted by a ratio that is clipped and has no gradient: no token loses its own.

        loss = -stop_gradient(clip(r, 1 - clip_low, 1 + clip_high)) A logprobs

    Source: CISPO, MiniMax-M1, arXiv 2506.13585, equations 4 and 5, which has no lower bound:
    ``clip_low: 1``.
    """
    ratio = torch.exp(tokens.logprobs.detach() - tokens.old_logprobs)
    bounded = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return TokenLoss(-bounded * tokens.advantages * tokens.logprobs, bounded != ratio)


def reinforce(tokens: Tokens, settings: Algorithm) -> TokenLoss:  # noqa: ARG001
    """The plain policy gradient, whatever the policy was that sampled.

        loss = -A logprobs

    Source: Williams 1992, doi 10.1007/BF00992696.
    """
    return TokenLoss(
        -tokens.advantages * tokens.logprobs, torch.zeros_like(tokens.trajectory, dtype=torch.bool)
    )


def _clipped_surrogate(log_ratio: Tensor, tokens: Tokens, settings: Algorithm) -> TokenLoss:
    ratio, advantages = torch.exp(log_ratio), tokens.advantages
    free = ratio * advantages
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantages
    gain, acts = torch.minimum(free, clipped), clipped < free
    if settings.dual_clip:
        floor = torch.where(advantages < 0, settings.dual_clip * advantages, -torch.inf)
        gain, acts = torch.maximum(gain, floor), acts | (floor > gain)
    return TokenLoss(-gain, acts)


LOSSES: dict[str, PolicyLoss] = {"ppo": ppo, "gspo": gspo, "cispo": cispo, "reinforce": reinforce}


def loss_named(name: str) -> PolicyLoss:
    """A built-in loss, or the user's at "pkg.module:function". Raises UserError."""
    if name in LOSSES:
        return LOSSES[name]
    found: PolicyLoss = import_object(name, "algorithm.loss")
    return found
