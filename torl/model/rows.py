"""The tokens of one pass over the key/value cache."""

from dataclasses import dataclass

from torch import Tensor

BLOCK = 64  # tokens of a block of the cache


@dataclass(frozen=True)
class Rows:
    """N tokens of any sequences. Token i stands at ``positions[i]`` of the sequence in slot
    ``slots[i]``, whose block b of the cache is ``tables[slots[i], b]``."""

    slots: Tensor  # (N,) int32
    positions: Tensor  # (N,) int64
    tables: Tensor  # (slots, blocks of a sequence) int32
