"""Log-probabilities of given ids, without keeping the vocabulary's worth of numbers.

Logits are computed only where an id trains, in chunks of rows; backward computes them again
rather than keep M x V of them. Shapes: M rows, C hidden size, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 512  # rows; a chunk's logits are 512 x V x 4 bytes


def chosen_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target (M,), and the entropy of each row's distribution (M,),
    which has no gradient, in nats.

        logprobs = log_softmax(hidden @ weight.T / temperature)[targets]

    hidden: (M, C), weight: (V, C), targets: (M,). ``temperature`` is the sampler's.
    """
    logprobs, entropy = _Chosen.apply(hidden, weight, targets, temperature)  # type: ignore[no-untyped-call]
    return logprobs, entropy


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        parts, normalisers, entropies = [], [], []
        for rows, wanted in zip(torch.split(hidden, CHUNK), torch.split(targets, CHUNK), strict=True):
            logits = _logits(rows, weight, temperature)
            peak = logits.amax(-1, keepdim=True)
            chosen = (logits.gather(1, wanted[:, None]) - peak).squeeze(1)
            logits -= peak
            weights = logits.exp()
            total = weights.sum(-1)
            entropies.append(total.log() - (weights * logits).sum(-1) / total)
            parts.append(chosen - total.log())
            normalisers.append(peak.squeeze(1) + total.log())
        empty = hidden.new_zeros(0, dtype=_wide(hidden.dtype))
        ctx.save_for_backward(hidden, weight, targets, torch.cat([empty, *normalisers]))
        ctx.temperature = temperature
        entropy = torch.cat([empty, *entropies])
        ctx.mark_non_differentiable(entropy)
        return torch.cat([empty, *parts]), entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight, targets, normalisers = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=_wide(weight.dtype))
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            # d logprob[target] / d logits = (one_hot(target) - softmax) / temperature
            slope = _logits(hidden[part], weight, ctx.temperature)
            slope = slope.sub_(normalisers[part, None]).exp_().neg_()
            slope[torch.arange(len(slope)), targets[part]] += 1
            slope = (slope * (grads[0][part, None] / ctx.temperature)).to(weight.dtype)
            grad_hidden[part] = slope @ weight
            grad_weight += slope.T @ hidden[part]
        return grad_hidden, grad_weight.to(weight.dtype), None, None


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = F.linear(hidden, weight).to(_wide(weight.dtype))
    return logits if temperature == 1.0 else logits / temperature


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
