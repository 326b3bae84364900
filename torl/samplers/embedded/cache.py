"""Keys and values of all slots, preallocated, in blocks of BLOCK tokens.

A layer's keys are (blocks, slots*K, D, BLOCK), its values (blocks, slots*K, BLOCK, D); the key
heads of slot s are rows s*K .. s*K+K. So one block of the first N slots is contiguous memory,
which the matrix kernels read in place: of a longer cache they would copy the part they need, at
every step, which took as long as the products themselves.
"""

from functools import partial

import torch
from torch import Tensor

BLOCK = 128


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
        blocks, rows = -(-tokens // BLOCK), slots * key_heads
        self.key_heads = key_heads
        # Zeros, not empty: masked positions are multiplied by 0, and 0 x NaN is NaN.
        zeros = partial(torch.zeros, dtype=dtype, device=device)
        self.keys = [zeros(blocks, rows, head_dim, BLOCK) for _ in range(layers)]
        self.values = [zeros(blocks, rows, BLOCK, head_dim) for _ in range(layers)]

    @property
    def tokens(self) -> int:
        """Tokens that a slot has room for."""
        return len(self.keys[0]) * BLOCK

    def ensure(self, tokens: int) -> None:
        """Makes room for ``tokens`` in every slot; grows by half at least, so copies stay rare."""
        if tokens <= self.tokens:
            return
        more = -(-max(tokens, self.tokens * 3 // 2) // BLOCK) - len(self.keys[0])
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                store[layer] = torch.cat([old, old.new_zeros(more, *old.shape[1:])])

    @torch.inference_mode()
    def clear(self) -> None:
        """Forgets everything, NaN included (see above)."""
        for store in (*self.keys, *self.values):
            store.zero_()

    def places(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where the first N slots write, each at its own position (N,): block, row and offset of
        every key head (N*K,). The same for all layers."""
        rows = torch.arange(len(positions) * self.key_heads, device=positions.device)
        at = positions.repeat_interleave(self.key_heads)
        return at // BLOCK, rows, at % BLOCK

    def write_rows(self, layer: int, places: tuple[Tensor, Tensor, Tensor], k: Tensor, v: Tensor) -> None:
        """Writes k, v (N, K, D) of the first N slots at their ``places``."""
        block, rows, offset = places
        self.keys[layer][block, rows, :, offset] = k.flatten(0, 1)
        self.values[layer][block, rows, offset] = v.flatten(0, 1)

    def rows(
        self, layer: int, slots: int, length: int, shared: int = 0, source: int = 0
    ) -> list[tuple[Tensor, Tensor]]:
        """Views of the first slots, block by block until ``length`` is covered:
        keys (slots*K, D, BLOCK), values (slots*K, BLOCK, D); of the first ``shared`` blocks those
        of slot ``source`` alone: (K, D, BLOCK), (K, BLOCK, D)."""
        every, one = slice(slots * self.key_heads), self._heads(source)
        heads = [one if block < shared else every for block in range(-(-length // BLOCK))]
        keys, values = self.keys[layer], self.values[layer]
        return [(keys[block, which], values[block, which]) for block, which in enumerate(heads)]

    def write_span(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Writes k, v (T, K, D) at positions start..start+T of one slot."""
        heads, end = self._heads(slot), start + len(k)
        for block in range(start // BLOCK, -(-end // BLOCK)):
            begin, stop = max(start, block * BLOCK), min(end, (block + 1) * BLOCK)
            part = slice(begin - start, stop - start)
            at = slice(begin - block * BLOCK, stop - block * BLOCK)
            self.keys[layer][block, heads, :, at] = k[part].permute(1, 2, 0)
            self.values[layer][block, heads, at] = v[part].transpose(0, 1)

    def span(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Copies of one slot's keys and values, each (K, length, D)."""
        heads, blocks = self._heads(slot), -(-length // BLOCK)
        keys = self.keys[layer][:blocks, heads].permute(1, 0, 3, 2).flatten(1, 2)
        values = self.values[layer][:blocks, heads].transpose(0, 1).flatten(1, 2)
        return keys[:, :length], values[:, :length]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the blocks that hold the first ``length`` positions of one slot to another."""
        old, new, blocks = self._heads(source), self._heads(target), -(-length // BLOCK)
        for store in (*self.keys, *self.values):
            store[:blocks, new] = store[:blocks, old]

    def _heads(self, slot: int) -> slice:
        return slice(slot * self.key_heads, (slot + 1) * self.key_heads)
