"""The forward pass of a decoder over cached keys and values, on the learner's own weights.

Families: Llama (SmolLM2, ...), Qwen2 (Qwen2.5, Qwen2.5-Math) and Qwen3. Each equals
transformers' logits in float32 (tests/test_embedded.py). Shapes: N rows (tokens of one or
many sequences), C hidden size, H query heads, K key heads, D head size, V vocabulary.

A row's numbers do not depend on which or how many other rows are computed with it, so timing
never changes results. Rows are padded to a multiple of ``ROW_MULTIPLE``, where the matrix
kernels are invariant to the number of rows; attention runs in blocks whose shapes follow from
the positions alone (checked by tests).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torl.errors import UserError
from torl.samplers.embedded.cache import BLOCK, Cache

FAMILIES = ("llama", "qwen2", "qwen3")
ROW_MULTIPLE = 8
QUERY_BLOCK = 64  # queries of a prefill attend in blocks that begin at multiples of this


class Decoder:
    """Runs a transformers model layer by layer. Weights are read in place, never copied, so
    an update by the learner is seen at once."""

    def __init__(self, model: Any) -> None:
        config: Any = model.config
        _refuse_unsupported(model, config)
        self.model = model
        self.config = config
        self.heads = config.num_attention_heads
        self.key_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.dtype: torch.dtype = self.model.lm_head.weight.dtype
        self.device: torch.device = self.model.lm_head.weight.device
        self._cos = self._sin = torch.empty(0)

    def new_cache(self, slots: int, tokens: int) -> Cache:
        return Cache(
            layers=self.config.num_hidden_layers,
            slots=slots,
            key_heads=self.key_heads,
            tokens=tokens,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    def decode(
        self, ids: Tensor, positions: Tensor, cache: Cache, shared: int = 0, source: int = 0
    ) -> Tensor:
        """One token for each of the first N slots. ids, positions: (N,). Returns (N, V).

        Row i belongs to slot i: its key and value are written at ``positions[i]``, and it
        attends to positions 0..positions[i] of that slot. The first ``shared`` blocks hold the
        same in all slots that count: they are read once, from slot ``source``.
        """
        length = -(-(int(positions.max()) + 1) // BLOCK) * BLOCK
        mask = torch.arange(length, device=self.device) > positions[:, None]  # (N, L)
        bias = torch.zeros(mask.shape, device=self.device).masked_fill_(mask, float("-inf"))
        bias = bias.repeat_interleave(self.key_heads, 0)[:, None, :]  # (N*K, 1, L)
        places = cache.places(positions)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write_rows(layer, places, k, v)
            return _attend_rows(q, cache.rows(layer, len(ids), length, shared, source), bias)

        hidden = self._layers(ids, positions, attend)
        return F.linear(hidden, self.model.lm_head.weight, self.model.lm_head.bias)

    def prefill(self, ids: Tensor, start: int, slot: int, cache: Cache) -> None:
        """Writes keys and values of ids (T,) at positions start..start+T of one slot.

        Where a prompt is cut into chunks changes no bit: each block of queries attends with
        the same shapes whichever chunk it comes in.
        """
        count = len(ids)
        ids = F.pad(ids, (0, -count % ROW_MULTIPLE))
        positions = torch.arange(start, start + len(ids), device=self.device)
        lead = start % QUERY_BLOCK  # empty queries before the first, to fill its block
        ends = range(start - lead + QUERY_BLOCK, start + len(ids) + QUERY_BLOCK, QUERY_BLOCK)
        masks = [self._causal_block(end) for end in ends]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write_span(layer, slot, start, k[:count], v[:count])
            q = F.pad(q, (0, 0, 0, 0, lead, ends[-1] - start - len(q)))
            out = [
                _attend_block(queries, *cache.span(layer, slot, end), mask)
                for queries, end, mask in zip(torch.split(q, QUERY_BLOCK), ends, masks, strict=True)
            ]
            return torch.cat(out)[lead : lead + len(ids)]

        self._layers(ids, positions, attend)

    def _causal_block(self, end: int) -> Tensor:
        """Which of ``end`` keys the last QUERY_BLOCK queries see, for all heads of a key head:
        (g*T, L), the T queries of a head one after the other."""
        seen = torch.ones(QUERY_BLOCK, end, dtype=torch.bool, device=self.device)
        return seen.tril(end - QUERY_BLOCK).repeat(self.heads // self.key_heads, 1)

    def _layers(self, ids: Tensor, positions: Tensor, attend: Any) -> Tensor:
        """(N,) ids to (N, C) final hidden states; ``attend`` maps a layer's q, k, v to (N, H*D)."""
        base = self.model.model
        hidden = F.embedding(ids, base.embed_tokens.weight)
        cos, sin = self._rotations(positions)
        for number, layer in enumerate(base.layers):
            normed = self._norm(hidden, layer.input_layernorm.weight)
            q, k, v = self._project(layer.self_attn, normed)
            mixed = attend(number, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
            hidden = hidden + _linear(mixed, layer.self_attn.o_proj)
            normed = self._norm(hidden, layer.post_attention_layernorm.weight)
            mlp = layer.mlp
            gated = F.silu(_linear(normed, mlp.gate_proj)) * _linear(normed, mlp.up_proj)
            hidden = hidden + _linear(gated, mlp.down_proj)
        return self._norm(hidden, base.norm.weight)

    def _project(self, attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, C) to q (N, H, D), k (N, K, D), v (N, K, D), with Qwen3's norms where present."""
        q = _linear(x, attention.q_proj).view(len(x), self.heads, self.head_dim)
        k = _linear(x, attention.k_proj).view(len(x), self.key_heads, self.head_dim)
        v = _linear(x, attention.v_proj).view(len(x), self.key_heads, self.head_dim)
        if hasattr(attention, "q_norm"):
            q, k = self._norm(q, attention.q_norm.weight), self._norm(k, attention.k_norm.weight)
        return q, k, v

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm with transformers' order of roundings."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return weight * wide.to(x.dtype)

    def _rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary cosines and sines (N, 1, D) from a table that grows when needed."""
        needed = int(positions.max()) + 1
        if len(self._cos) < needed:
            every = torch.arange(max(256, 2 * needed), device=self.device)[None]
            sample = torch.empty(0, dtype=self.dtype, device=self.device)
            cos, sin = self.model.model.rotary_emb(sample, every)
            self._cos, self._sin = cos[0], sin[0]
        return self._cos[positions][:, None], self._sin[positions][:, None]


def _linear(x: Tensor, module: Any) -> Tensor:
    return F.linear(x, module.weight, module.bias)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of (N, heads, D), halves convention."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def _attend_rows(q: Tensor, blocks: list[tuple[Tensor, Tensor]], bias: Tensor) -> Tensor:
    """Attention of one query token a row, grouped queries without expanding the keys.

    q: (N, H, D); blocks: keys (N*K, D, BLOCK) and values (N*K, BLOCK, D), or those of a block
    that all rows share, (K, D, BLOCK) and (K, BLOCK, D); L tokens in all; bias: (N*K, 1, L).
    Returns (N, H*D).

    L is the longest neighbour's. What lies behind a row's own end must add an exact 0 to it, and
    matrix kernels split long sums by their length; so values are summed block by block.
    """
    rows, heads, dim = q.shape
    q = q.reshape(len(bias), -1, dim) * dim**-0.5  # (N*K, g, D)
    group = q.shape[1]
    if q.dtype == torch.float32:  # there, fewer rows than four take kernels of their own
        q = F.pad(q, (0, 0, 0, -group % 4))
    scores = torch.cat([_products(q, keys) for keys, _ in blocks], dim=-1).float()
    weights = torch.split((scores + bias).softmax(-1).to(q.dtype), BLOCK, dim=-1)
    parts = [_products(w, values) for w, (_, values) in zip(weights, blocks, strict=True)]
    out = parts[0] if len(parts) == 1 else torch.stack([p.float() for p in parts]).sum(0)
    return out[:, :group].to(q.dtype).reshape(rows, heads * dim)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """(N*K, g, A) by (N*K, A, B), or by (K, A, B) of all rows alike, to (N*K, g, B).

    The shared form reads ``right`` once instead of once a row; the numbers are the same.
    """
    heads = len(right)
    if heads == len(left):
        return torch.bmm(left, right)
    wide = left.view(-1, heads, *left.shape[1:]).transpose(0, 1)  # (K, N, g, A)
    out = torch.bmm(wide.flatten(1, 2), right).view(*wide.shape[:3], -1)
    return out.transpose(0, 1).reshape(len(left), left.shape[1], -1)


def _attend_block(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Attention of a block of queries of one sequence. q: (T, H, D); keys, values: (K, L, D);
    seen: (g*T, L). Returns (T, H*D)."""
    count, heads, dim = q.shape
    q = q.view(count, len(keys), -1, dim).permute(1, 2, 0, 3)  # (K, g, T, D)
    out = F.scaled_dot_product_attention(
        q.reshape(1, len(keys), -1, dim), keys[None], values[None], attn_mask=seen
    )
    return out.view(heads, count, dim).transpose(0, 1).flatten(1)


def _refuse_unsupported(model: nn.Module, config: Any) -> None:
    if config.model_type not in FAMILIES:
        raise UserError(
            f"the embedded sampler knows the model families {', '.join(FAMILIES)}, "
            f"not {config.model_type!r}; choose a model of one of these"
        )
    windows = getattr(config, "layer_types", None) or []
    if "sliding_attention" in windows or getattr(config, "use_sliding_window", False):
        raise UserError(
            "this model attends through a sliding window, which the embedded sampler does not do; "
            "set use_sliding_window to false in its config.json if it was trained without"
        )
    if config.hidden_act != "silu":
        raise UserError(f"the embedded sampler knows the activation 'silu', not {config.hidden_act!r}")
    plain = all(type(m) is nn.Linear for name, m in model.named_modules() if name.endswith("_proj"))
    if not plain:
        raise UserError(
            "this model's layers are quantised or carry adapters; merge them into plain weights"
        )
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        raise UserError(f"rotary scaling {rope['rope_type']!r} depends on the length and is not supported")
