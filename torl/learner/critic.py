"""PPO's critic: the value of every state from which the policy chose a token."""

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torl import config
from torl.algorithms.gae import explained_variance, gae, gae_by_turn, value_loss, whiten
from torl.learner.batch import Pack, Sample, packs
from torl.learner.forward import Forward, by_sample
from torl.learner.optimizer import Optimizer
from torl.learner.totals import Totals


class Critic:
    """A value head behind the policy's last hidden states: on a copy of the backbone that learns with it,
    or on the policy's own, where the head alone learns, so that the policy's gradient stays the policy
    loss's.

    The head is float32 and begins at 0: at first every advantage is the return.
    """

    def __init__(self, policy: Any, settings: config.Critic, learner: config.Learner) -> None:
        self._settings = settings
        self._own = settings.backbone == "own"
        model = copy.deepcopy(policy) if self._own else policy
        self._forward = Forward(model, 1.0, learner.pack_tokens, learner.activation_checkpointing)
        self._head = nn.Linear(model.config.hidden_size, 1, device=model.device)
        nn.init.zeros_(self._head.weight)
        nn.init.zeros_(self._head.bias)
        trained: dict[str, nn.Module] = {"head": self._head}
        if self._own:
            model.requires_grad_(True)
            model.get_output_embeddings().requires_grad_(model.config.tie_word_embeddings)
            trained["backbone"] = model
        self._optimizer = Optimizer(nn.ModuleDict(trained), self._forward.kernels, learner, settings.lr)

    @property
    def warming_up(self) -> bool:
        """The policy does not learn yet."""
        return self._optimizer.updates < self._settings.warmup_updates

    def judge(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Replaces each sample's advantage, so far its reward, by those of GAE, token by token; notes
        returns and values for ``step``. Returns metrics."""
        self._note_values(samples)
        found = [self._estimate(sample) for sample in samples]
        advantages = [advantage for advantage, _ in found]
        if self._settings.whiten:
            advantages = whiten(advantages)
        for sample, mine, (_, returns) in zip(samples, advantages, found, strict=True):
            sample.advantages = _onto(sample, mine)
            sample.returns = _onto(sample, returns)
        if not found:
            return {}
        values = torch.cat([_of(sample, sample.values) for sample in samples])
        explained = explained_variance(values, torch.cat([returns for _, returns in found]))
        metrics = {"critic/value": float(values.mean())}
        return metrics | ({} if math.isnan(explained) else {"critic/explained_variance": explained})

    def step(self, samples: Sequence[Sample], totals: Totals) -> None:
        """One optimizer update of the critic on a mini-batch: the mean over its tokens."""
        tokens = sum(sample.trained_tokens for sample in samples)
        if not tokens:
            return
        self._optimizer.begin()
        for pack in packs(samples, self._forward.pack_tokens):
            assert pack.values is not None
            assert pack.returns is not None
            values = self._values(pack)
            old, returns = pack.values.to(values), pack.returns.to(values)
            loss = value_loss(values, old, returns, self._settings.clip).sum() / tokens
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.collect()
            totals.add_loss("loss/value", float(loss.detach()))
        totals.add("critic/grad_norm", [self._optimizer.apply(self._settings.lr)])

    def save(self, folder: Path) -> None:
        self._optimizer.save(folder / "critic.safetensors")

    def load(self, folder: Path) -> None:
        self._optimizer.load(folder / "critic.safetensors")

    def _values(self, pack: Pack) -> Tensor:
        """(M,), float32."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._own):
            hidden = self._forward.hidden(pack)
        return self._head(hidden.to(self._head.weight.dtype))[:, 0]  # type: ignore[no-any-return]

    @torch.no_grad()
    def _note_values(self, samples: Sequence[Sample]) -> None:
        found = [self._values(pack) for pack in packs(samples, self._forward.pack_tokens)]
        for sample, values in zip(samples, by_sample(samples, found), strict=True):
            sample.values = values

    def _estimate(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """Advantages and returns (N,) of the trained tokens; the reward comes with the last of them."""
        values = _of(sample, sample.values)
        rewards = torch.zeros_like(values)
        rewards[-1] = sample.advantages[sample.trained[-1]]
        decay = self._settings.gamma, self._settings.gae_lambda
        if self._settings.by_turn:
            return gae_by_turn(rewards, values, torch.tensor(sample.turns), *decay)
        return gae(rewards, values, *decay)


def _of(sample: Sample, values: list[float] | None) -> Tensor:
    assert values is not None
    return torch.tensor([values[n] for n in sample.trained], dtype=torch.float64)


def _onto(sample: Sample, values: Tensor) -> list[float]:
    """Numbers of the trained tokens, laid onto all ids."""
    laid = [0.0] * len(sample.ids)
    for n, value in zip(sample.trained, values.tolist(), strict=True):
        laid[n] = value
    return laid
