"""Keys and values of all slots, preallocated.

One tensor of keys and one of values a layer, each (slots*K, tokens, D): the key heads of slot
s are rows s*K .. s*K+K. The first N slots are a view, so decoding copies nothing.
"""

import torch
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
        shape = (slots * key_heads, self.padded(tokens), head_dim)
        self.key_heads = key_heads
        # Zeros, not empty: masked positions are multiplied by 0, and 0 x NaN is NaN.
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]

    @staticmethod
    def padded(length: int) -> int:
        return -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE

    @property
    def tokens(self) -> int:
        """Tokens that a slot has room for."""
        return self.keys[0].shape[1]

    def ensure(self, tokens: int) -> None:
        """Makes room for ``tokens`` in every slot; grows by half at least, so copies stay rare."""
        if tokens <= self.tokens:
            return
        room = self.padded(max(tokens, self.tokens * 3 // 2))
        for store in (self.keys, self.values):
            for number, old in enumerate(store):
                new = old.new_zeros(old.shape[0], room, old.shape[2])
                new[:, : old.shape[1]] = old
                store[number] = new

    def write_rows(self, layer: int, positions: Tensor, k: Tensor, v: Tensor) -> None:
        """Writes k, v (N, K, D) of the first N slots, each at its own position (N,)."""
        rows = torch.arange(len(positions) * self.key_heads, device=positions.device)
        at = positions.repeat_interleave(self.key_heads)
        self.keys[layer][rows, at] = k.flatten(0, 1)
        self.values[layer][rows, at] = v.flatten(0, 1)

    def rows(self, layer: int, slots: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first slots, as views (slots*K, length, D)."""
        heads = slots * self.key_heads
        return self.keys[layer][:heads, :length], self.values[layer][:heads, :length]

    def write_span(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Writes k, v (T, K, D) at positions start..start+T of one slot."""
        heads = self._heads(slot)
        self.keys[layer][heads, start : start + len(k)] = k.transpose(0, 1)
        self.values[layer][heads, start : start + len(v)] = v.transpose(0, 1)

    def span(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one slot, as views (K, length, D)."""
        heads = self._heads(slot)
        return self.keys[layer][heads, :length], self.values[layer][heads, :length]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first ``length`` positions of one slot to another."""
        for store in (*self.keys, *self.values):
            store[self._heads(target), :length] = store[self._heads(source), :length]

    def _heads(self, slot: int) -> slice:
        return slice(slot * self.key_heads, (slot + 1) * self.key_heads)
