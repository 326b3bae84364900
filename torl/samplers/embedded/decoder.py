"""A pass over tokens of any sequences: a prompt's, an observation's, or a new one of each sequence."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from torl.model.draw import restrict
from torl.model.network import ROW_MULTIPLE, Network
from torl.model.rows import BLOCK, Rows
from torl.samplers.base import SamplingParams
from torl.samplers.embedded.cache import Cache


class Decoder:
    """A network and its cache of at most ``cache_bytes``, for sequences in ``slots`` slots."""

    any_pieces = True  # a sequence may be fed in any pieces, to the same numbers

    def __init__(self, network: Network, slots: int, cache_bytes: int) -> None:
        self._network = network
        self.stale = True  # whether the weights have changed since the last pass
        self.device = network.device
        layers, heads, dim = len(network.layers), network.key_heads, network.head_dim
        block_bytes = 2 * layers * heads * dim * BLOCK * network.dtype.itemsize
        self.cache = Cache(
            layers=layers,
            slots=slots,
            blocks=max(1, cache_bytes // block_bytes),
            key_heads=heads,
            head_dim=dim,
            dtype=network.dtype,
            device=network.device,
        )

    @torch.inference_mode()
    def forward(
        self, ids: list[int], slots: list[int], positions: list[int], wanted: Sequence[int]
    ) -> Tensor:
        """Feeds id i at ``positions[i]`` of the sequence in ``slots[i]``, behind all that the sequence
        has. Returns the logits (W, V) that follow the ``wanted`` ids."""
        padding = -len(ids) % ROW_MULTIPLE
        cache, network = self.cache, self._network
        if self.stale:
            network.pack()
            self.stale = False
        rows = Rows(
            slots=self._tensor(slots + [cache.padding_slot] * padding, torch.int32),
            positions=self._tensor(positions + [0] * padding),
            tables=cache.tables,
        )

        def attend(layer: int, qkv: Tensor) -> Tensor:
            keys, values = cache.keys[layer], cache.values[layer]
            network.kernels.store(qkv, keys, values, rows)
            return network.kernels.attend(qkv, keys, values, rows)

        hidden = network.run(self._tensor(ids + [0] * padding), rows.positions, attend)
        chosen = hidden[self._tensor(list(wanted))]
        chosen = F.pad(chosen, (0, 0, 0, -len(wanted) % ROW_MULTIPLE))
        return network.logits(chosen)[: len(wanted)]

    def draw(
        self, logits: Tensor, uniforms: list[float], params: Sequence[SamplingParams]
    ) -> tuple[Tensor, Tensor]:
        """Ids (N,) and their log-probabilities (N,)."""
        return self._network.kernels.draw(
            restricted(logits, params),
            self._tensor(uniforms, torch.float64),
            self._tensor([p.temperature for p in params], torch.float32),
        )

    def _tensor(self, values: list[int] | list[float], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def restricted(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Logits (N, V) without what the rows' parameters leave out."""
    if not any(p.restricts for p in params):
        return logits
    rows = [
        restrict(row, p.temperature, p.top_k, p.top_p, p.min_p) if p.restricts else row
        for row, p in zip(logits, params, strict=True)
    ]
    return torch.stack(rows)
