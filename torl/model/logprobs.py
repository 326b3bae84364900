"""Log-probabilities of given ids, without keeping the vocabulary's worth of numbers.

Logits are computed only where an id trains, in chunks of rows; backward computes them again
rather than keep M x V of them. Shapes: M rows, C hidden size, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torl.model.plain import Plain

CHUNK = 1024  # rows; a chunk's logits are 1024 x V numbers of the weights' type


def chosen_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, kernels: Plain
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target (M,), and the entropy of each row's distribution (M,), in nats.

        logprobs = log_softmax(hidden @ weight.T / temperature)[targets]

    hidden: (M, C), weight: (V, C), targets: (M,). ``temperature`` is the sampler's.
    """
    pair: tuple[Tensor, Tensor] = _Chosen.apply(hidden, weight, targets, temperature, kernels)  # type: ignore[no-untyped-call]
    return pair


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, kernels: Plain
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(weight.dtype, torch.float32)
        chosen, entropy, norms = (hidden.new_empty(len(hidden), dtype=wide) for _ in range(3))
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            logits = F.linear(hidden[part], weight)
            found = kernels.logprobs(logits, targets[part], temperature)
            chosen[part], entropy[part], norms[part] = found
        ctx.save_for_backward(hidden, weight, targets, norms, entropy)
        ctx.temperature, ctx.kernels = temperature, kernels
        ctx.set_materialize_grads(False)  # so that an unused entropy costs nothing
        return chosen, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, norms, entropy = ctx.saved_tensors
        slopes_chosen = grads[0] if grads[0] is not None else torch.zeros_like(norms)
        grad_hidden, sums = torch.empty_like(hidden), None
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            logits = F.linear(hidden[part], weight)
            slopes = ctx.kernels.logprob_slopes(
                logits,
                targets[part],
                ctx.temperature,
                norms[part],
                slopes_chosen[part],
                entropy[part],
                grads[1][part] if grads[1] is not None else None,
            )
            grad_hidden[part] = slopes @ weight
            product = slopes.T @ hidden[part]
            if len(hidden) <= CHUNK:
                return grad_hidden, product, None, None, None
            if sums is None:
                sums = torch.zeros_like(weight, dtype=norms.dtype)  # float32 at least
            ctx.kernels.accumulate(sums, product)
        grad_weight = torch.zeros_like(weight) if sums is None else sums.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None
