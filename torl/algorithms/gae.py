"""Generalised advantage estimation, for PPO with a critic. Pure functions.

Shapes: N, the trained tokens of one trajectory in order. What the environment appended lies between them
and takes no time: a token's successor is the next token that the policy chose.
"""

import torch
from torch import Tensor


def gae(rewards: Tensor, values: Tensor, gamma: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
    """Advantages (N,) and returns (N,), from rewards (N,) and values (N,) of the states before each token.

        delta_t = r_t + gamma V_{t+1} - V_t,   V_{N+1} = 0
        A_t = delta_t + gamma lambda A_{t+1}
        R_t = A_t + V_t

    Source: arXiv 1506.02438, equation 16. With lambda 1, A_t is the discounted return minus V_t.
    """
    advantages = torch.zeros_like(values)
    following = running = values.new_zeros(())
    for t in reversed(range(len(values))):
        delta = rewards[t] + gamma * following - values[t]
        running = delta + gamma * gae_lambda * running
        advantages[t], following = running, values[t]
    return advantages, advantages + values


def gae_by_turn(
    rewards: Tensor, values: Tensor, turns: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """The same with a turn for a step: gamma and lambda count turns, not tokens. ``turns`` (N,) numbers
    each token's turn. A turn's state value is that before its first token, its reward the sum of its
    tokens', and all its tokens share its advantage; the returns are those of the turn.

    So a long turn discounts no more than a short one.
    """
    first = torch.ones_like(turns, dtype=torch.bool)
    first[1:] = turns[1:] != turns[:-1]
    which = first.long().cumsum(0) - 1
    summed = values.new_zeros(int(first.sum())).index_add(0, which, rewards)
    advantages, returns = gae(summed, values[first], gamma, gae_lambda)
    return advantages[which], returns[which]


def whiten(advantages: list[Tensor], eps: float = 1e-8) -> list[Tensor]:
    """All tokens' advantages of a batch, at mean 0 and deviation 1. Source: PPO's usual practice, e.g.
    "The 37 implementation details of PPO", detail 7. Equal ones become 0."""
    everything = torch.cat(advantages) if advantages else torch.zeros(0)
    if len(everything) < 2:
        return advantages
    mean, deviation = everything.mean(), everything.std() + eps
    return [(some - mean) / deviation for some in advantages]


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Of each token (M,): half the square of the error, and of the error with the value held within
    ``clip`` of what it was, the larger (0: no clip).

        max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2

    Source: PPO's reference implementation (openai/baselines, ppo2).
    """
    error = (values - returns).square()
    if clip:
        held = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns).square())
    return error / 2


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - var(R - V) / var(R): 1 where the critic knows the returns, 0 where it says their mean. NaN where
    all returns are the same."""
    spread = float(returns.var(correction=0))
    return 1 - float((returns - values).var(correction=0)) / spread if spread > 0 else float("nan")
