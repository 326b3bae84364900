"""What a decoder does between its matrix products, in plain torch: on any device, with gradients.

Shapes: N rows (tokens), C hidden size, H query heads, K key heads, D head size, F size of the
feed-forward layer, V vocabulary. No row's numbers depend on the rows beside it.
"""

import torch
from torch import Tensor

from torl.model.draw import draw
from torl.model.rows import BLOCK, Rows
from torl.model.tree import Tree


class Plain:
    """The kernels of a model with ``heads`` query heads and ``key_heads`` key heads."""

    name = "plain torch"

    def __init__(self, heads: int, key_heads: int, head_dim: int) -> None:
        self.heads, self.key_heads, self.head_dim = heads, key_heads, head_dim

    def add_norm(
        self, hidden: Tensor, delta: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """hidden + delta (N, C), and its RMS norm times ``weight`` (C,), rounded as transformers does."""
        if delta is not None:
            hidden = hidden + delta
        wide = _wide(hidden)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return hidden, weight * wide.to(hidden.dtype)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of (N, 2F), whose rows hold gate and then up: (N, F)."""
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    def rotate(self, qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
        """Queries and keys of (N, (H + 2K) D) rotated to their positions, by tables (positions, D)."""
        turned = (self.heads + self.key_heads) * self.head_dim
        x = qkv[:, :turned].view(len(qkv), -1, self.head_dim)
        left, right = x.chunk(2, dim=-1)  # halves convention
        x = x * cos[positions][:, None] + torch.cat((-right, left), dim=-1) * sin[positions][:, None]
        return torch.cat((x.flatten(1), qkv[:, turned:]), dim=-1)

    def store(self, qkv: Tensor, keys: Tensor, values: Tensor, rows: Rows) -> None:
        """Writes the keys and values of the rows into a layer's blocks (cache.py)."""
        block = rows.tables[rows.slots, rows.positions // BLOCK]
        _, k, v = self._split(qkv)
        keys[block, :, :, rows.positions % BLOCK] = k
        values[block, :, rows.positions % BLOCK] = v

    def attend(self, qkv: Tensor, keys: Tensor, values: Tensor, rows: Rows) -> Tensor:
        """Attention of each row to positions 0..its own of its sequence: (N, H*D).

        Block by block, with a running softmax: the shapes of a row's products follow from its own
        position alone, so its numbers do not change with its neighbours.
        """
        q, _, _ = self._split(qkv)
        q = q.reshape(len(q) * self.key_heads, -1, self.head_dim) * self.head_dim**-0.5
        group = q.shape[1]
        if q.dtype == torch.float32:  # there, fewer rows than four take kernels of their own
            q = torch.nn.functional.pad(q, (0, 0, 0, -group % 4))
        peak = torch.full((*q.shape[:2], 1), float("-inf"), device=q.device)
        total = torch.zeros_like(peak)
        sums = torch.zeros(q.shape, device=q.device)
        tables = rows.tables[rows.slots]
        for number in range(int(rows.positions.max()) // BLOCK + 1):
            block = tables[:, number]
            scores = torch.bmm(q, keys[block].flatten(0, 1)).float()
            unseen = number * BLOCK + torch.arange(BLOCK, device=q.device) > rows.positions[:, None]
            unseen = unseen.repeat_interleave(self.key_heads, 0)[:, None]
            scores = scores.masked_fill_(unseen, float("-inf"))
            top = torch.maximum(peak, scores.amax(-1, keepdim=True))
            shrink = (peak - top).exp_()
            weights = (scores - top).exp_()
            total = total * shrink + weights.sum(-1, keepdim=True)
            sums = sums * shrink + torch.bmm(weights.to(q.dtype), values[block].flatten(0, 1)).float()
            peak = top
        return (sums / total)[:, :group].to(q.dtype).reshape(len(qkv), -1)

    def attend_tree(self, qkv: Tensor, tree: Tree) -> Tensor:
        """Attention within a pack of T tokens, each to what it sees: (T, (H + 2K) D) to (T, H*D)."""
        q, k, v = (x.transpose(0, 1)[None] for x in self._split(qkv))
        k, v = (x.repeat_interleave(self.heads // self.key_heads, dim=1) for x in (k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=tree.mask.to(q.device))
        return out[0].transpose(0, 1).flatten(1)

    def logprobs(
        self, logits: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of logits (M, V) over temperature: each target's log-probability, the entropy, and the logarithm
        of the softmax's sum, each (M,), in float32 at least."""
        scaled = _wide(logits) / temperature
        norms = scaled.logsumexp(-1)
        logprobs = scaled - norms[:, None]
        weights = logprobs.exp()
        entropy = -torch.where(weights > 0, weights * logprobs, 0.0).sum(-1)
        return logprobs.gather(1, targets[:, None]).squeeze(1), entropy, norms

    def logprob_slopes(
        self,
        logits: Tensor,
        targets: Tensor,
        temperature: float,
        norms: Tensor,
        slopes: Tensor,
        entropy: Tensor,
        entropy_slopes: Tensor | None,
    ) -> Tensor:
        """The slope of the logits (M, V), given those of the targets' log-probabilities (M,),
        (one_hot(target) - p) / temperature times it, and of the entropies (M,), if they have one:
        -p (log p + entropy) / temperature times it. ``logits`` may be overwritten."""
        logprobs = _wide(logits) / temperature - norms[:, None]
        weights = logprobs.exp()
        bend: Tensor | float = 0.0
        if entropy_slopes is not None:
            bend = torch.where(weights > 0, weights * (logprobs + entropy[:, None]), 0.0)
            bend *= entropy_slopes[:, None] / temperature
        change = weights.neg_()
        change[torch.arange(len(change), device=change.device), targets] += 1
        change *= slopes[:, None] / temperature
        return (change - bend).to(logits.dtype)

    def accumulate(self, total: Tensor, x: Tensor) -> None:
        """total += x; total is float32, x of the model's type."""
        total += x

    def draw(self, logits: Tensor, uniforms: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        """Ids (N,) and their log-probabilities (N,); see draw.py."""
        return draw(logits, uniforms, temperatures)

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (N, H, D), k (N, K, D), v (N, K, D)."""
        parts = [self.heads, self.key_heads, self.key_heads]
        q, k, v = torch.split(qkv.view(len(qkv), -1, self.head_dim), parts, dim=1)
        return q, k, v


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
