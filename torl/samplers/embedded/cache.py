"""Keys and values of all sequences, in blocks of BLOCK tokens.

A layer's keys are (blocks, K, D, BLOCK), its values (blocks, K, BLOCK, D), for K key heads of size D:
so a query meets contiguous memory in both. A sequence is a list of blocks in a slot of ``tables``;
sequences that begin alike share the blocks that they have in common, which are counted.
"""

import contextlib
import math
import mmap

import torch
from torch import Tensor

from torl.model.rows import BLOCK


class Cache:
    """``blocks`` blocks for the sequences of ``slots`` slots. One more slot, the last, takes the rows
    that only pad a pass."""

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        blocks: int,
        key_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.keys = [_zeros((blocks + 1, key_heads, head_dim, BLOCK), dtype, device) for _ in range(layers)]
        self.values = [
            _zeros((blocks + 1, key_heads, BLOCK, head_dim), dtype, device) for _ in range(layers)
        ]
        self.padding_slot = slots
        self.tables = torch.zeros(slots + 1, 16, dtype=torch.int32, device=device)
        self._held: list[list[int]] = [[] for _ in range(slots)]
        self._users = [0] * (blocks + 1)
        self._touched = 0  # the last block that was ever in use
        self._free = list(range(blocks, 0, -1))  # block 0 is the padding's

    @property
    def tokens(self) -> int:
        """Tokens that a single sequence could have."""
        return (len(self._users) - 1) * BLOCK

    def reserve(self, slot: int, tokens: int) -> bool:
        """Makes room for ``tokens`` in a sequence; False, and nothing done, when blocks are short."""
        held = self._held[slot]
        missing = -(-tokens // BLOCK) - len(held)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            self._append(slot, self._free.pop())
        return True

    def fork(self, source: int, target: int, tokens: int) -> bool:
        """Gives an empty slot the first ``tokens`` of another sequence: whole blocks shared, the rest
        copied. False, and nothing done, when there is no block for the rest."""
        whole, rest = divmod(tokens, BLOCK)
        if rest and not self._free:
            return False
        for block in self._held[source][:whole]:
            self._append(target, block)
        if rest:
            old, new = self._held[source][whole], self._free.pop()
            self._append(target, new)
            with torch.inference_mode():
                for layer in (*self.keys, *self.values):
                    layer[new] = layer[old]
        return True

    def release(self, slot: int) -> None:
        """Forgets a sequence. Blocks that no other one shares are free again."""
        for block in reversed(self._held[slot]):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free.append(block)
        self._held[slot].clear()

    def clear(self) -> None:
        """Forgets everything, numbers included: what is masked is multiplied by 0, and 0 x NaN is NaN."""
        for slot in range(len(self._held)):
            self.release(slot)
        with torch.inference_mode():
            for layer in (*self.keys, *self.values):
                layer[: self._touched + 1].zero_()  # not all of it: what is untouched takes no memory

    def _append(self, slot: int, block: int) -> None:
        number = len(self._held[slot])
        if number == self.tables.shape[1]:
            self.tables = torch.cat([self.tables, torch.zeros_like(self.tables)], dim=1)
        self._touched = max(self._touched, block)
        self.tables[slot, number] = block
        self._held[slot].append(block)
        self._users[block] += 1


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU, memory that the system hands out when it is first written to."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
