"""Keys and values of all slots, preallocated.

A layer's values are (slots*K, tokens, D), its keys (slots*K, D, tokens): the key heads of slot s
are rows s*K .. s*K+K. The first N slots are a view, so decoding copies nothing; keys lie with
their tokens last because the matrix kernels read such a view in place (three times faster than
with D last on a CPU).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTH_MULTIPLE = 64  # attention runs over lengths padded to this: fewer shapes, same numbers


class Cache:
    """``slots`` contexts of up to ``tokens`` tokens. K key heads of size D."""

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        key_heads: int,
        tokens: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        rows, room = slots * key_heads, self.padded(tokens)
        self.key_heads = key_heads
        # Zeros, not empty: masked positions are multiplied by 0, and 0 x NaN is NaN.
        self.keys = [torch.zeros(rows, head_dim, room, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(rows, room, head_dim, dtype=dtype, device=device) for _ in range(layers)]

    @staticmethod
    def padded(length: int) -> int:
        return -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE

    @property
    def tokens(self) -> int:
        """Tokens that a slot has room for."""
        return self.values[0].shape[1]

    def ensure(self, tokens: int) -> None:
        """Makes room for ``tokens`` in every slot; grows by half at least, so copies stay rare."""
        if tokens <= self.tokens:
            return
        room = self.padded(max(tokens, self.tokens * 3 // 2))
        more = room - self.tokens
        self.keys = [F.pad(old, (0, more)) for old in self.keys]
        self.values = [F.pad(old, (0, 0, 0, more)) for old in self.values]

    @torch.inference_mode()
    def clear(self) -> None:
        """Forgets everything, NaN included (see above)."""
        for store in (*self.keys, *self.values):
            store.zero_()

    def write_rows(self, layer: int, positions: Tensor, k: Tensor, v: Tensor) -> None:
        """Writes k, v (N, K, D) of the first N slots, each at its own position (N,)."""
        rows = torch.arange(len(positions) * self.key_heads, device=positions.device)
        at = positions.repeat_interleave(self.key_heads)
        self.keys[layer][rows, :, at] = k.flatten(0, 1)
        self.values[layer][rows, at] = v.flatten(0, 1)

    def rows(self, layer: int, slots: int, length: int) -> tuple[Tensor, Tensor]:
        """Views of the first slots: keys (slots*K, D, length), values (slots*K, length, D)."""
        heads = slots * self.key_heads
        return self.keys[layer][:heads, :, :length], self.values[layer][:heads, :length]

    def write_span(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Writes k, v (T, K, D) at positions start..start+T of one slot."""
        heads = self._heads(slot)
        self.keys[layer][heads, :, start : start + len(k)] = k.permute(1, 2, 0)
        self.values[layer][heads, start : start + len(v)] = v.transpose(0, 1)

    def span(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Views of one slot: keys (K, D, length), values (K, length, D)."""
        heads = self._heads(slot)
        return self.keys[layer][heads, :, :length], self.values[layer][heads, :length]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first ``length`` positions of one slot to another."""
        old, new = self._heads(source), self._heads(target)
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[new, :, :length] = keys[old, :, :length]
            values[new, :length] = values[old, :length]

    def _heads(self, slot: int) -> slice:
        return slice(slot * self.key_heads, (slot + 1) * self.key_heads)
