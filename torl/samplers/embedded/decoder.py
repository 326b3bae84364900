"""The forward pass of a decoder over cached keys and values, on the learner's own weights.

Families: Llama (SmolLM2, ...), Qwen2 (Qwen2.5, Qwen2.5-Math) and Qwen3. Each equals
transformers' logits in float32 (tests/test_embedded.py). Shapes: N rows (tokens of one or
many sequences), C hidden size, H query heads, K key heads, D head size, V vocabulary.

A row's numbers do not depend on which or how many other rows are computed with it: rows are
padded to a multiple of ``ROW_MULTIPLE``, where the matrix kernels are invariant to the number
of rows (checked by a test), so timing never changes results.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torl.errors import UserError
from torl.samplers.embedded.cache import Cache

FAMILIES = ("llama", "qwen2", "qwen3")
ROW_MULTIPLE = 8


class Decoder:
    """Runs a transformers model layer by layer. Weights are read in place, never copied, so
    an update by the learner is seen at once."""

    def __init__(self, model: Any) -> None:
        config: Any = model.config
        _refuse_unsupported(config)
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

    def decode(self, ids: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """One token for each of the first N slots. ids, positions: (N,). Returns (N, V).

        Row i belongs to slot i: its key and value are written at ``positions[i]``, and it
        attends to positions 0..positions[i] of that slot.
        """
        length = cache.padded(int(positions.max()) + 1)
        mask = torch.arange(length, device=self.device) > positions[:, None]  # (N, L)
        bias = torch.zeros(mask.shape, device=self.device).masked_fill_(mask, float("-inf"))
        bias = bias.repeat_interleave(self.key_heads, 0)[:, None, :]  # (N*K, 1, L)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write_rows(layer, positions, k, v)
            return _attend_rows(q, *cache.rows(layer, len(ids), length), bias)

        hidden = self._layers(ids, positions, attend)
        return F.linear(hidden, self.model.lm_head.weight, self.model.lm_head.bias)

    def prefill(self, ids: Tensor, start: int, slot: int, cache: Cache) -> None:
        """Writes keys and values of ids (T,) at positions start..start+T of one slot."""
        count = len(ids)
        pad = -count % ROW_MULTIPLE
        ids = F.pad(ids, (0, pad))
        positions = torch.arange(start, start + len(ids), device=self.device)
        length = cache.padded(start + len(ids))
        seen = torch.arange(length, device=self.device) <= positions[:, None]  # (T, L)
        group = self.heads // self.key_heads
        seen = seen.repeat(group, 1)  # queries of a key head stand one after the other

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write_span(layer, slot, start, k[:count], v[:count])
            keys, values = cache.span(layer, slot, length)  # (K, L, D)
            q = q.view(-1, self.key_heads, group, self.head_dim).permute(1, 2, 0, 3)  # (K, g, T, D)
            out = F.scaled_dot_product_attention(
                q.reshape(1, self.key_heads, -1, self.head_dim), keys[None], values[None], attn_mask=seen
            )
            return out.view(self.key_heads, group, -1, self.head_dim).permute(2, 0, 1, 3).flatten(1)

        self._layers(ids, positions, attend)

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


def _attend_rows(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attention of one query token a row, grouped queries without expanding the keys.

    q: (N, H, D); keys, values: (N*K, L, D); bias: (N*K, 1, L). Returns (N, H*D).
    """
    rows, heads, dim = q.shape
    q = q.reshape(len(keys), -1, dim) * dim**-0.5  # (N*K, g, D)
    scores = torch.bmm(q, keys.transpose(1, 2)).float() + bias
    return torch.bmm(scores.softmax(-1).to(values.dtype), values).view(rows, heads * dim)


def _refuse_unsupported(config: Any) -> None:
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
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        raise UserError(f"rotary scaling {rope['rope_type']!r} depends on the length and is not supported")
