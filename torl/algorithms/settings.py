"""The recipe's section ``algorithm``, and which of its combinations make no sense.

The names of functions are known here without importing torch.
"""

from collections.abc import Callable
from typing import Literal

from pydantic import Field, model_validator

from torl.imports import nearest
from torl.section import Section

ADVANTAGES = (
    "grpo",
    "dr_grpo",
    "rloo",
    "maxrl",
    "pass_at_k",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gae",
)
"""The names in torl/algorithms/advantages.py, and "gae", which is the critic's."""

ALONE = ("reinforce_pp", "gae")
"""Those that do not compare within a group, so that a group may have one member."""

LOSSES = ("ppo", "gspo", "cispo", "reinforce")
"""The names in torl/algorithms/losses.py."""

MASKS = ("void_turn", "invented_output", "repetition")
"""The names in torl/algorithms/filters.py."""


class Algorithm(Section):
    advantage: str = "grpo"
    """How rewards become advantages (docs/algorithms.md): grpo, dr_grpo, rloo, maxrl, pass_at_k,
    reinforce_pp, reinforce_pp_baseline, gae (PPO, with a critic), or the import path of a function from a
    group's rewards (G,) to advantages (G,)."""
    per_part: bool = False
    """The advantages of each reward part are computed apart and then summed by their weights, so that a
    part with small numbers is heard beside one with large ones (GDPO)."""
    loss: str = "ppo"
    """The policy loss of a token: ppo, gspo, cispo, reinforce, or the import path of a function
    ``(tokens, settings) -> TokenLoss`` (torl/algorithms/losses.py)."""
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """How losses of tokens add up: the mean over the tokens of all trajectories, the mean over trajectories
    of their means, or the sum divided by trajectories times max_completion_tokens (Dr. GRPO)."""
    clip_low: float = Field(0.2, ge=0)
    """The ratio of new to old probability is clipped below at 1 - clip_low."""
    clip_high: float = Field(0.2, ge=0)
    """The ratio is clipped above at 1 + clip_high (DAPO: 0.28)."""
    dual_clip: float = Field(0.0, ge=0)
    """Losses "ppo" and "gspo": where the advantage is negative, the ratio counts at most so much (0: no
    such bound; usual: 3)."""
    entropy_coef: float = Field(0.0, ge=0)
    """The loss of a token is lowered by so much times the entropy of its distribution, in nats."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the divergence from the reference, the policy before training (0: no reference is held;
    otherwise a second copy of the weights, in the recipe's dtype)."""
    kl: Literal["k1", "k2", "k3"] = "k3"
    """The estimate of the divergence (docs/algorithms.md)."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where it counts: in each token's loss, or subtracted from the trajectory's reward (sum over its
    tokens) before advantages are computed."""
    off_policy: Literal["none", "truncate", "reject"] = "none"
    """What is done where the learner's probabilities are not the sampler's: nothing, weights capped at
    off_policy_bound (truncated importance sampling), or what lies beyond the bound does not train."""
    off_policy_level: Literal["token", "sequence"] = "token"
    """Whether that ratio is a token's, or its whole trajectory's (a product over tokens)."""
    off_policy_bound: float = Field(2.0, gt=1)
    """The largest ratio; "reject" takes its inverse as the smallest."""
    mini_batches: int = Field(1, gt=0)
    """Optimizer updates that one batch is split into."""
    epochs: int = Field(1, gt=0)
    """Passes over one batch."""
    old_logprobs: Literal["learner", "sampler"] = "learner"
    """With more than one update a batch: who gives the log-probabilities of the ratio."""

    @property
    def has_critic(self) -> bool:
        """Advantages are those of GAE, over a critic's values."""
        return self.advantage == "gae"

    @property
    def on_policy(self) -> bool:
        """One update a batch: the ratio of new to old is 1 throughout."""
        return self.mini_batches * self.epochs == 1

    @model_validator(mode="after")
    def _possible(self) -> "Algorithm":
        _known("algorithm.advantage", self.advantage, ADVANTAGES)
        _known("algorithm.loss", self.loss, LOSSES)
        for makes_no_sense, why in _REFUSED:
            if makes_no_sense(self):
                raise ValueError(why)
        return self

    def warnings(self) -> list[str]:
        """What is possible, and hardly meant."""
        return [why for dubious, why in _DUBIOUS if dubious(self)]


class Filters(Section):
    mask: list[str] = Field(default_factory=list)
    """Trajectories that these apply to do not train, while their rewards still count in their group:
    void_turn, invented_output, repetition (docs/algorithms.md). See also rollout.train_truncated."""
    draws: int = Field(1, gt=0)
    """Up to so many batches of tasks are played in a step, until prompts_per_step groups have signal;
    others are left out (dynamic sampling, DAPO; 1: one batch, and all of it is kept)."""
    oversample: int = Field(1, gt=0)
    """So many times group_size trajectories of a task are played, of which group_size are kept: failures in
    proportion, and of the successes rather the clean ones (GRPO-RoC; 1: all are kept)."""

    @model_validator(mode="after")
    def _masks_are_known(self) -> "Filters":
        for name in self.mask:
            if name not in MASKS:
                raise ValueError(
                    f"filters.mask: none named {name!r}.{nearest(name, list(MASKS))} "
                    f"Known: {', '.join(MASKS)}"
                )
        return self


class Critic(Section):
    backbone: Literal["own", "shared"] = "own"
    """Where the value head stands: on a copy of the policy that learns with it (as much memory again as the
    policy's weights, gradients and optimizer state), or on the policy itself, where the head alone
    learns."""
    lr: float = Field(1e-5, gt=0)
    """AdamW's learning rate for the critic."""
    clip: float = Field(0.2, ge=0)
    """A value moves at most so far from what it was before the batch, as its loss sees it (0: no clip)."""
    warmup_updates: int = Field(0, ge=0)
    """Updates of the critic that come before the policy's first. A batch that begins with fewer trains the
    critic alone."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount, by token or by turn."""
    gae_lambda: float = Field(1.0, ge=0, le=1)
    """GAE's lambda: 1 trusts returns, 0 the critic."""
    by_turn: bool = False
    """A step of GAE is a turn, not a token: the tokens of one turn share their advantage."""
    whiten: bool = True
    """Advantages of a batch are brought to mean 0 and deviation 1."""


def _known(key: str, name: str, names: tuple[str, ...]) -> None:
    if ":" not in name and name not in names:
        raise ValueError(
            f"{key}: none named {name!r}.{nearest(name, list(names))} Known: {', '.join(names)}; or an "
            "import path, pkg.module:function"
        )


_REFUSED: list[tuple[Callable[[Algorithm], bool], str]] = [
    (
        lambda a: 0 < a.dual_clip <= 1,
        "algorithm.dual_clip must be above 1 (usual: 3), or 0 for none: it bounds ratios that have grown",
    ),
    (
        lambda a: a.loss == "gspo" and a.off_policy != "none" and a.off_policy_level == "token",
        "algorithm.loss=gspo has one ratio a trajectory; a correction by token would weigh its tokens "
        "apart again. Use algorithm.off_policy_level=sequence",
    ),
    (
        lambda a: a.kl_coef > 0 and a.kl == "k1" and a.kl_in == "loss",
        "algorithm.kl=k1 in the loss does nothing: the mean of its gradient is 0. Use k2 (the divergence's "
        "own gradient) or k3, or algorithm.kl_in=reward",
    ),
    (
        lambda a: a.off_policy != "none" and a.old_logprobs == "sampler" and not a.on_policy,
        "algorithm.off_policy compares the learner's old log-probabilities with the sampler's, and "
        "algorithm.old_logprobs=sampler makes them the same. Use old_logprobs=learner",
    ),
    (
        lambda a: a.per_part and a.advantage == "gae",
        "algorithm.per_part=true compares parts within a group; advantage=gae has a critic of the whole "
        "reward",
    ),
]

_DUBIOUS: list[tuple[Callable[[Algorithm], bool], str]] = [
    (
        lambda a: (
            a.on_policy
            and (a.clip_low, a.clip_high, a.dual_clip) != (0.2, 0.2, 0.0)
            and a.loss != "reinforce"
        ),
        "algorithm.clip_low, clip_high and dual_clip have no effect: with mini_batches=1 and epochs=1 the "
        "ratio is always 1",
    ),
    (
        lambda a: a.loss == "gspo" and not a.on_policy and min(a.clip_low, a.clip_high) >= 0.05,
        "algorithm.loss=gspo: the ratio of a whole trajectory moves by about 1e-4, so a clip of 0.05 and "
        "more never acts (paper: clip_low=3e-4 clip_high=4e-4)",
    ),
    (
        lambda a: a.loss == "gspo" and a.aggregation != "sequence_mean",
        "algorithm.loss=gspo is meant with aggregation=sequence_mean",
    ),
    (
        lambda a: a.loss == "reinforce" and not a.on_policy,
        "algorithm.loss=reinforce has no ratio: updates after the first are off policy and not corrected",
    ),
]
