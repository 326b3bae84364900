"""The loss of a pack: the policy loss, its weights, and what is added to it."""

import torch
from torch import Tensor

from torl import config
from torl.algorithms.kl import KL
from torl.algorithms.losses import Tokens, loss_named
from torl.algorithms.off_policy import CORRECTIONS, ratios
from torl.learner.batch import Pack
from torl.learner.totals import Totals


class Objective:
    """What the recipe's section ``algorithm`` makes of log-probabilities:

    loss = sum over tokens of weight (rho loss_policy - entropy_coef H + kl_coef KL) / denominator

    with weight and denominator from aggregation.py, and rho from off_policy.py.
    """

    def __init__(self, algorithm: config.Algorithm) -> None:
        self._algorithm = algorithm
        self._policy_loss = loss_named(algorithm.loss)

    @property
    def needs_reference(self) -> bool:
        return self._algorithm.kl_coef > 0 and self._algorithm.kl_in == "loss"

    @property
    def without_signal(self) -> bool:
        """Whether a token whose advantage is 0 has a gradient nevertheless."""
        return self.needs_reference or self._algorithm.entropy_coef > 0

    def __call__(
        self, pack: Pack, logprobs: Tensor, entropy: Tensor, denominator: float, totals: Totals
    ) -> Tensor:
        """The pack's share of the update's loss, from logprobs (M,) and entropy (M,)."""
        now, weights = logprobs.detach(), pack.weights.to(logprobs)
        old = pack.old_logprobs.to(now) if pack.old_logprobs is not None else now
        trajectory = pack.trajectory.to(now.device)
        tokens = Tokens(logprobs, old, pack.advantages.to(now), trajectory)
        loss, clipped = self._policy_loss(tokens, self._algorithm)
        loss = loss * weights * self._corrections(pack, tokens, totals)
        total = loss.sum() / denominator
        totals.add_loss("loss/policy", float(total.detach()))
        totals.add("learner/ratio_mean", torch.exp(now - old))
        totals.add("learner/clip_ratio", clipped.float())
        totals.add("loss/entropy", entropy.detach())
        if totals.updates == 0:  # later updates compare with a policy that has moved on
            totals.add("sampler/logprob_gap", (now - pack.sampler_logprobs.to(now)).abs())
        if self._algorithm.entropy_coef:
            total = total - self._algorithm.entropy_coef * (entropy * weights).sum() / denominator
        if self.needs_reference:
            assert pack.ref_logprobs is not None
            divergence = KL[self._algorithm.kl](logprobs, pack.ref_logprobs.to(now))
            totals.add("loss/kl", divergence.detach())
            total = total + self._algorithm.kl_coef * (divergence * weights).sum() / denominator
        return total

    def _corrections(self, pack: Pack, tokens: Tokens, totals: Totals) -> Tensor | float:
        """rho of each token (M,), where the sampler's probabilities are not taken for the learner's."""
        if self._algorithm.off_policy == "none":
            return 1.0
        sampled = pack.sampler_logprobs.to(tokens.old_logprobs)
        level = self._algorithm.off_policy_level
        found = ratios(tokens.old_logprobs, sampled, tokens.trajectory, level)
        rho = CORRECTIONS[self._algorithm.off_policy](found, self._algorithm.off_policy_bound)
        totals.add("learner/off_policy_ratio", found)
        totals.largest("learner/off_policy_ratio_max", found)
        bound = self._algorithm.off_policy_bound
        totals.add("learner/off_policy_beyond", ((found > bound) | (found < 1 / bound)).float())
        return rho
