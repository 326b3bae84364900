"""A model's numbers at the trained tokens of packs: log-probabilities, entropies, hidden states."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from torl.learner.batch import Pack, Sample, packs
from torl.model.logprobs import chosen_logprobs
from torl.model.network import Network, unsupported
from torl.model.plain import Plain


class Forward:
    """The forward pass of the learner: the fast one where the model's family has it, else transformers'
    own.

    ``temperature`` is the sampler's: the policy that is trained is the distribution that was sampled.
    """

    def __init__(self, model: Any, temperature: float, pack_tokens: int, recompute: bool = False) -> None:
        self.model = model
        self._temperature = temperature
        self._recompute = recompute
        model.eval()  # dropout stays off, as it is when the policy samples
        self.network = Network(model) if unsupported(model) is None else None
        self.pack_tokens = pack_tokens if self.network else 1  # a foreign model takes one sample
        if self.network is None and recompute:
            _recompute_activations(model)
        self.kernels = self.network.kernels if self.network else Plain(1, 1, 1)

    def __call__(self, pack: Pack) -> tuple[Tensor, Tensor]:
        """Log-probabilities (M,) and entropies (M,) of a pack's trained tokens."""
        targets = pack.targets.to(self.model.device)
        if self.network is None:
            logits = self.model(input_ids=pack.ids[None].to(targets.device), use_cache=False).logits[0]
            rows = logits[pack.source.to(targets.device)]
            chosen, entropy, _ = self.kernels.logprobs(rows, targets, self._temperature)
            return chosen, entropy
        head = self.model.get_output_embeddings().weight
        return chosen_logprobs(self.hidden(pack), head, targets, self._temperature, self.kernels)

    def hidden(self, pack: Pack) -> Tensor:
        """The last hidden state, (M, C), from which each trained token is predicted."""
        source, ids = pack.source.to(self.model.device), pack.ids.to(self.model.device)
        if self.network is None:
            return self.model.base_model(input_ids=ids[None], use_cache=False)[0][0][source]  # type: ignore[no-any-return]
        whole = self.network.run(
            ids,
            pack.positions.to(self.model.device),
            lambda _, qkv: self.kernels.attend_tree(qkv, pack.tree),
            recompute=self._recompute,
        )
        return whole[source]

    def packs(self, samples: Sequence[Sample]) -> list[Pack]:
        """The samples in packs that fit this model."""
        return list(packs(samples, self.pack_tokens))

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """For each sample, the log-probability of each of its ids; 0.0 where it does not train."""
        return by_sample(samples, [self(pack)[0] for pack in packs(samples, self.pack_tokens)])


def by_sample(samples: Sequence[Sample], found: Sequence[Tensor]) -> list[list[float]]:
    """Numbers of the trained tokens of packs, laid back onto the ids of each sample; 0.0 elsewhere."""
    numbers = iter([value for some in found for value in some.tolist()])
    return [[next(numbers) if trains else 0.0 for trains in s.loss_mask] for s in samples]


def _recompute_activations(model: Any) -> None:
    """Of transformers' activation checkpointing, only the layers that recompute are in train mode, and
    nothing inside them: dropout stays off."""
    # The second name is that of older versions of transformers.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for module in model.modules():
        module.training = isinstance(module, GradientCheckpointingLayer)
