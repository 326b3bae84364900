"""Drawing one id a row from logits, with one uniform number a row.

Inverse transform: an id is drawn by where u x total falls in the running sum of the
probabilities. Noise for every id of the vocabulary (as in ``torch.multinomial``) costs a
third of a decoding step on a CPU; one uniform number costs nothing.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256


def draw(logits: Tensor, uniforms: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (N,) and their natural log-probabilities (N,) under the distribution drawn from.

    logits: (N, V); uniforms: (N,) float64 in [0, 1); temperatures: (N,), 0 is greedy, whose
    distribution is a single id with log-probability 0. Logits may be -inf; a NaN gives the
    log-probability NaN.
    """
    logits = logits.float()
    greedy = temperatures <= 0
    scaled = logits / torch.where(greedy, 1.0, temperatures)[:, None]
    peak = scaled.amax(-1, keepdim=True)
    weights = torch.exp(scaled - peak)  # (N, V), the largest is 1
    ids, total = _invert(weights, uniforms)
    logprobs = (scaled.gather(1, ids[:, None]) - peak).squeeze(1) - total.log().float()
    best = logits.argmax(-1)
    certain = greedy & total.isfinite()  # a NaN among the logits stays a NaN, greedy or not
    return torch.where(greedy, best, ids), torch.where(certain, 0.0, logprobs)


def restrict(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Logits (V,) with -inf for the ids that samplers.base.SamplingParams leaves out. Ids that are as
    likely as the last one kept are kept."""
    scaled = logits.double() / temperature
    if 0 < top_k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[-1], float("-inf"))
    if top_p < 1:
        probabilities = scaled.softmax(-1)
        ordered = probabilities.sort(descending=True).values
        enough = int((ordered.cumsum(-1) < top_p).sum().clamp(max=len(ordered) - 1))
        scaled = scaled.masked_fill(probabilities < ordered[enough], float("-inf"))
    if min_p > 0:
        scaled = scaled.masked_fill(scaled < scaled.max() + math.log(min_p), float("-inf"))
    return logits.masked_fill(scaled == float("-inf"), float("-inf"))


def _invert(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Where u x total falls in the running sum of each row: ids (N,), totals (N,).

    In two levels, blocks and then ids within a block, so that running sums are short (they
    stay exact) and the vocabulary is read once.
    """
    rows, vocabulary = weights.shape
    weights = F.pad(weights, (0, -vocabulary % BLOCK)).view(rows, -1, BLOCK)
    blocks = weights.sum(-1).double().cumsum(-1)
    total = blocks[:, -1]
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    block = torch.searchsorted(blocks, target[:, None], right=True).clamp(max=blocks.shape[1] - 1)
    below = torch.where(block > 0, blocks.gather(1, (block - 1).clamp(min=0)), 0.0)
    within = weights[torch.arange(rows, device=weights.device), block.squeeze(1)]  # (N, BLOCK)
    running = within.double().cumsum(-1)
    inside = torch.searchsorted(running, (target[:, None] - below), right=True)
    # Rounding may point past the block's last id with any weight: take that id then.
    last = BLOCK - 1 - (within > 0).flip(-1).to(torch.int8).argmax(-1, keepdim=True)
    ids = block * BLOCK + torch.minimum(inside, last)
    return ids.squeeze(1).clamp(max=vocabulary - 1), total  # past the end only for NaN
