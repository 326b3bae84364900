"""Any causal model of transformers, by its own forward pass: slower than a Network, as correct.

One sequence is computed after the other, so its numbers cannot depend on its neighbours. They may
depend on the pieces in which it is fed; so each prompt and each observation is fed whole.
"""

import copy
import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torl.model.draw import draw
from torl.samplers.base import SamplingParams
from torl.samplers.embedded.decoder import restricted


class ForeignDecoder:
    """A decoder (decoder.py) and its cache in one. Its memory is bounded by the number of slots."""

    any_pieces = False

    def __init__(self, model: Any, slots: int) -> None:
        self._model = model
        named = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in named else "past_key_values"  # the older name
        self._past: list[Any] = [None] * slots
        self.cache = self
        self.stale = True
        self.tokens = 1 << 62

    def reserve(self, _slot: int, _tokens: int) -> bool:
        return True

    def fork(self, source: int, target: int, _tokens: int) -> bool:
        self._past[target] = copy.deepcopy(self._past[source])
        return True

    def release(self, slot: int) -> None:
        self._past[slot] = None

    def clear(self) -> None:
        self._past = [None] * len(self._past)

    @torch.inference_mode()
    def forward(
        self, ids: list[int], slots: list[int], _positions: list[int], wanted: Sequence[int]
    ) -> Tensor:
        """As Decoder's."""
        rows = []
        for slot, places in itertools.groupby(range(len(ids)), key=slots.__getitem__):
            part = list(places)
            fed = torch.tensor([[ids[n] for n in part]], device=self._model.device)
            out = self._model(input_ids=fed, **{self._cache_name: self._past[slot]}, use_cache=True)
            self._past[slot] = out[self._cache_name]
            rows += [out.logits[0, n - part[0]] for n in wanted if part[0] <= n <= part[-1]]
        return torch.stack(rows) if rows else torch.empty(0)

    def draw(
        self, logits: Tensor, uniforms: list[float], params: Sequence[SamplingParams]
    ) -> tuple[Tensor, Tensor]:
        """As Decoder's."""
        return draw(
            restricted(logits, params),
            torch.tensor(uniforms, dtype=torch.float64, device=logits.device),
            torch.tensor([p.temperature for p in params], device=logits.device),
        )
