"""The forward pass of a decoder, on the weights of a transformers model: one for sampling and one for
learning, so that both compute the same numbers.

Families: Llama (SmolLM2, ...), Qwen2 (Qwen2.5, Qwen2.5-Math) and Qwen3. Each equals transformers'
logits in float32 (tests/test_embedded.py). Shapes: N rows (tokens of one or many sequences), C hidden
size, H query heads, K key heads, D head size, V vocabulary.

A row's numbers do not depend on which or how many other rows are computed with it, so timing never
changes results: matrix kernels are invariant to the number of rows at multiples of ``ROW_MULTIPLE``
(checked by tests), and everything else computes each row by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torl.errors import UserError
from torl.model.native import kernels_for

FAMILIES = ("llama", "qwen2", "qwen3")
ROW_MULTIPLE = 4
_HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]

Attend = Callable[[int, Tensor], Tensor]
"""A layer's number and its rotated queries, keys and values (N, (H + 2K) D) to (N, H*D)."""


class Network:
    """Runs a transformers model layer by layer. Weights are read in place, so an update by the
    learner is seen at once. Raises UserError for a model that it would compute wrongly."""

    def __init__(self, model: Any) -> None:
        config: Any = model.config
        if (why := unsupported(model)) is not None:
            raise UserError(why)
        self.model = model
        self.config = config
        self.heads = config.num_attention_heads
        self.key_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps: float = config.rms_norm_eps
        self.dtype: torch.dtype = model.lm_head.weight.dtype
        self.device: torch.device = model.lm_head.weight.device
        self.kernels = kernels_for(self.heads, self.key_heads, self.head_dim, self.dtype, self.device)
        self.layers = [_Layer.of(layer) for layer in model.model.layers]
        self._head = _Fused(model.lm_head)
        self._cos = self._sin = torch.empty(0)

    def run(self, ids: Tensor, positions: Tensor, attend: Attend, recompute: bool = False) -> Tensor:
        """Ids and positions (N,) to final hidden states (N, C), which ``logits`` takes. With
        ``recompute`` a layer's activations are not kept for backward."""
        tables = self._rotations(int(positions.max()) + 1)

        def layer(number: int, hidden: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
            return self._layer(number, hidden, delta, positions, tables, attend)

        hidden, delta = F.embedding(ids, self.model.model.embed_tokens.weight), None
        for number in range(len(self.layers)):
            if recompute:
                hidden, delta = checkpoint(layer, number, hidden, delta, use_reentrant=False)
            else:
                hidden, delta = layer(number, hidden, delta)
        return self.kernels.add_norm(hidden, delta, self.model.model.norm.weight, self.eps)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, C) to (N, V)."""
        return self._head(hidden)

    def pack(self) -> None:
        """Lays a copy of the weights out as the matrix kernels read them, where there is such a layout:
        passes of few rows then take about a third less time, with the same numbers. To be called again
        when the weights have changed."""
        if self.device.type == "cpu" and self.dtype == torch.bfloat16 and _HAS_ONEDNN:
            for layer in self.layers:
                for product in (layer.qkv, layer.out, layer.gate_up, layer.down):
                    product.pack()
            self._head.pack()

    def _layer(
        self,
        number: int,
        hidden: Tensor,
        delta: Tensor | None,
        positions: Tensor,
        tables: tuple[Tensor, Tensor],
        attend: Attend,
    ) -> tuple[Tensor, Tensor]:
        """The residual stream is ``hidden + delta``: each addition is made with the norm behind it."""
        layer, kernels = self.layers[number], self.kernels
        hidden, x = kernels.add_norm(hidden, delta, layer.norm.weight, self.eps)
        qkv = kernels.rotate(self._norm_heads(layer, layer.qkv(x)), *tables, positions)
        hidden, x = kernels.add_norm(
            hidden, layer.out(attend(number, qkv)), layer.middle_norm.weight, self.eps
        )
        return hidden, layer.down(kernels.silu_mul(layer.gate_up(x)))

    def _norm_heads(self, layer: "_Layer", qkv: Tensor) -> Tensor:
        """Qwen3's norms of each query and key."""
        if layer.q_norm is None:
            return qkv
        sizes = [self.heads * self.head_dim, self.key_heads * self.head_dim, self.key_heads * self.head_dim]
        q, k, v = torch.split(qkv, sizes, dim=-1)
        parts = [
            self.kernels.add_norm(x.reshape(-1, self.head_dim), None, norm.weight, self.eps)[1].view(
                x.shape
            )
            for x, norm in ((q, layer.q_norm), (k, layer.k_norm))
        ]
        return torch.cat([*parts, v], dim=-1)

    @torch.no_grad()
    def _rotations(self, length: int) -> tuple[Tensor, Tensor]:
        """Rotary cosines and sines (positions, D), in tables that grow when needed."""
        if len(self._cos) < length:
            every = torch.arange(max(256, 2 * length), device=self.device)[None]
            sample = torch.empty(0, dtype=self.dtype, device=self.device)
            cos, sin = self.model.model.rotary_emb(sample, every)
            self._cos, self._sin = cos[0].contiguous().clone(), sin[0].contiguous().clone()
        return self._cos, self._sin


@dataclass(frozen=True)
class _Layer:
    norm: Any
    qkv: "_Fused"
    q_norm: Any
    k_norm: Any
    out: "_Fused"
    middle_norm: Any
    gate_up: "_Fused"
    down: "_Fused"

    @staticmethod
    def of(layer: Any) -> "_Layer":
        attention, mlp = layer.self_attn, layer.mlp
        return _Layer(
            norm=layer.input_layernorm,
            qkv=_Fused(attention.q_proj, attention.k_proj, attention.v_proj),
            q_norm=getattr(attention, "q_norm", None),
            k_norm=getattr(attention, "k_norm", None),
            out=_Fused(attention.o_proj),
            middle_norm=layer.post_attention_layernorm,
            gate_up=_Fused(mlp.gate_proj, mlp.up_proj),
            down=_Fused(mlp.down_proj),
        )


class _Fused:
    """Linear layers of the same input as one product. Their parameters become views of one tensor, so
    nothing is copied when they change; each still has its own gradient."""

    def __init__(self, *linears: nn.Linear) -> None:
        self._weights: list[Tensor] = [linear.weight for linear in linears]
        self._biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
        self._weight = _as_one(self._weights)
        self._bias = _as_one(self._biases) if self._biases else None
        self._packed: Tensor | None = None

    @torch.no_grad()
    def pack(self) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight, 64)

    def __call__(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(self._weights) > 1:
            out: Tensor = _FusedProduct.apply(x, self._weight, *self._weights)  # type: ignore[no-untyped-call]
            return out + torch.cat(self._biases) if self._biases else out
        if torch.is_grad_enabled():
            return F.linear(x, self._weights[0], self._biases[0] if self._biases else None)
        if self._packed is not None:
            plain: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
            return plain
        return F.linear(x, self._weight, self._bias)


class _FusedProduct(torch.autograd.Function):
    """x @ weight.T, with gradients for the parameters that ``weight`` consists of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes = [len(part) for part in parts]
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        slope = grads[0]
        return slope @ weight, None, *torch.split(slope.T @ x, ctx.sizes)


def _as_one(parts: list[Tensor]) -> Tensor:
    """The parameters as one tensor, which they become views of, if they are not already."""
    first = parts[0].data
    end = first.storage_offset()
    for part in parts:
        same = part.data.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or part.data.storage_offset() != end or not part.data.is_contiguous():
            break
        end += part.numel()
    else:
        shape = (sum(len(part) for part in parts), *first.shape[1:])
        return first.as_strided(shape, first.stride())
    whole = torch.cat([part.data for part in parts])
    for part, view in zip(parts, torch.split(whole, [len(part) for part in parts]), strict=True):
        part.data = view
    return whole


def unsupported(model: Any) -> str | None:
    """Why Network cannot run this model, if it cannot."""
    config = model.config
    if config.model_type not in FAMILIES:
        return f"only the model families {', '.join(FAMILIES)} have a fast path, not {config.model_type!r}"
    windows = getattr(config, "layer_types", None) or []
    if "sliding_attention" in windows or getattr(config, "use_sliding_window", False):
        return (
            "the fast path cannot attend through this model's sliding window (set use_sliding_window "
            "to false in its config.json if it was trained without)"
        )
    if config.hidden_act != "silu":
        return f"the fast path has the activation 'silu', not {config.hidden_act!r}"
    if any(type(m) is not nn.Linear for name, m in model.named_modules() if name.endswith("_proj")):
        return "the fast path needs plain weights, and this model's layers are quantised or carry adapters"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        return f"the fast path lacks the rotary scaling {rope['rope_type']!r}, which depends on the length"
    return None
