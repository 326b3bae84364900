"""Advantages: how good a trajectory was, judged against others. Pure functions.

Most compare within one group: a function from rewards (G,) to advantages (G,). To add one: that function,
with its formula and its paper, and its name in ``ADVANTAGES``, here and in settings.py; or keep it in a
module of yours and name its import path in the recipe. Groups may differ in size, where trajectories were
lost or dropped. A group whose rewards are all equal carries no signal: its advantages are exactly 0.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torl.imports import import_object

Advantage = Callable[[Tensor], Tensor]
"""Of one group: rewards (G,) to advantages (G,)."""

BatchAdvantage = Callable[[Sequence[Tensor]], list[Tensor]]
"""Of all groups of a step: their rewards, each (G,), to their advantages, each (G,)."""


def grpo(rewards: Tensor, eps: float = 1e-6) -> Tensor:
    """Group-relative advantages.

        A_i = (r_i - mean(r)) / (std(r) + eps)

    with the unbiased standard deviation, as in the reference implementation of ToRL.
    Source: DeepSeekMath, arXiv 2402.03300, section 4.1.2. Needs G >= 2.
    """
    centred = dr_grpo(rewards)
    return centred / (rewards.std() + eps) if len(rewards) > 1 else centred


def dr_grpo(rewards: Tensor) -> Tensor:
    """Advantages without the division, which weighs easy and hard tasks more.

        A_i = r_i - mean(r)

    Source: Dr. GRPO, arXiv 2503.20783, section 3.2.
    """
    if _all_equal(rewards):  # exactly, where rounding of the mean would not be
        return torch.zeros_like(rewards)
    return rewards - rewards.mean()


def rloo(rewards: Tensor) -> Tensor:
    """Each reward against the mean of the others', which does not depend on it: unbiased.

        A_i = r_i - mean(r_j, j != i) = G / (G - 1) (r_i - mean(r))

    Source: RLOO, arXiv 2402.14740. Needs G >= 2.
    """
    size = len(rewards)
    return dr_grpo(rewards) * (size / (size - 1)) if size > 1 else torch.zeros_like(rewards)


def maxrl(rewards: Tensor) -> Tensor:
    """Weighs a task by the inverse of its success rate, as maximum likelihood does: the rarer its
    successes, the more each counts.

        s_i = (r_i - min(r)) / (max(r) - min(r)),   A_i = (s_i - mean(s)) / mean(s)

    For rewards of two values, s_i is success and this is the paper's estimator, of G samples with at least
    one success; it equals a sum over k of the gradients of pass@k, each weighed by 1/k. Other rewards are
    scaled to 0 to 1 first. Source: MaxRL, arXiv 2602.02710.
    """
    if _all_equal(rewards):
        return torch.zeros_like(rewards)
    success = (rewards - rewards.min()) / (rewards.max() - rewards.min())
    return (success - success.mean()) / success.mean()


def pass_at_k(rewards: Tensor, k: int = 4) -> Tensor:
    """The gradient of pass@k: what a trajectory adds to the best of k, not to the mean.

        A_i = mean of max(r_S) over the sets S of k trajectories with i  -  the same without i,

    counted exactly: with rewards sorted, the largest of a random set of k is the one of rank n with weight
    C(n - 1, k - 1). Source: Pass@K Policy Optimization, arXiv 2505.15201. Needs
    G > k; in a smaller group k is G - 1.
    """
    size = len(rewards)
    if size < 2 or _all_equal(rewards):
        return torch.zeros_like(rewards)
    k = min(k, size - 1)
    advantages = torch.empty_like(rewards)
    for i in range(size):
        others = torch.cat([rewards[:i], rewards[i + 1 :]]).sort().values
        advantages[i] = _best_of(torch.maximum(others, rewards[i]), k - 1, rewards[i]) - _best_of(others, k)
    return advantages


def reinforce_pp(groups: Sequence[Tensor], eps: float = 1e-8) -> list[Tensor]:
    """Rewards, normalised over the whole batch; no comparison within a group, which may have one member.

        A = (r - mean over the batch) / (std over the batch + eps)

    Source: REINFORCE++, arXiv 2501.03262, without its token-level KL (see algorithm.kl_in).
    """
    everything = torch.cat(list(groups)) if groups else torch.zeros(0)
    if _all_equal(everything):
        return [torch.zeros_like(rewards) for rewards in groups]
    deviation = everything.std() + eps if len(everything) > 1 else 1.0
    return [(rewards - everything.mean()) / deviation for rewards in groups]


def reinforce_pp_baseline(groups: Sequence[Tensor], eps: float = 1e-8) -> list[Tensor]:
    """The group's mean as baseline, the deviation that of the whole batch: hard and easy tasks weigh alike.

        A_i = (r_i - mean(r)) / (std over the batch of (r - mean(r)) + eps)

    Source: REINFORCE++-baseline, arXiv 2501.03262.
    """
    centred = [dr_grpo(rewards) for rewards in groups]
    everything = torch.cat(centred) if centred else torch.zeros(0)
    deviation = everything.std() + eps if len(everything) > 1 else 1.0
    return [rewards / deviation for rewards in centred]


def undivided(groups: Sequence[Tensor]) -> list[Tensor]:
    """Rewards as they are. A critic makes advantages of them: torl/algorithms/gae.py."""
    return list(groups)


def each(advantage: Advantage) -> BatchAdvantage:
    """The advantage of one group, taken of each."""
    return lambda groups: [advantage(rewards) for rewards in groups]


ADVANTAGES: dict[str, BatchAdvantage] = {
    "grpo": each(grpo),
    "dr_grpo": each(dr_grpo),
    "rloo": each(rloo),
    "maxrl": each(maxrl),
    "pass_at_k": each(pass_at_k),
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "gae": undivided,
}


def advantage_named(name: str) -> BatchAdvantage:
    """A built-in advantage, or the user's of one group at "pkg.module:function". Raises UserError."""
    return ADVANTAGES[name] if name in ADVANTAGES else each(import_object(name, "algorithm.advantage"))


def _all_equal(rewards: Tensor) -> bool:
    return bool((rewards == rewards[:1]).all())


def _best_of(rewards: Tensor, k: int, floor: Tensor | None = None) -> Tensor:
    """Mean over sets of k of their largest reward (at least ``floor``). ``rewards`` (N,) is sorted."""
    if k == 0:
        assert floor is not None
        return floor
    ranks = torch.arange(1, len(rewards) + 1, dtype=torch.float64)
    logs = torch.lgamma(ranks) - torch.lgamma(
        (ranks - k + 1).clamp(min=1)
    )  # of C(n - 1, k - 1), up to a factor
    weights = torch.where(ranks >= k, torch.exp(logs - logs.max()), 0.0).to(rewards)
    return (weights * rewards).sum() / weights.sum()
