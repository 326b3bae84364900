"""Sums of what the updates of one batch did, for the step's metrics."""

from collections.abc import Iterable

import torch
from torch import Tensor


class Totals:
    def __init__(self) -> None:
        self.updates = 0
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._largest: dict[str, float] = {}
        self._skipped = {"learner/no_signal_updates": 0.0, "learner/skipped_updates": 0.0}

    def add(self, name: str, values: Iterable[float] | Tensor) -> None:
        """Adds to a mean over all values that are given."""
        values = torch.as_tensor(values).double()
        self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())
        self._counts[name] = self._counts.get(name, 0) + len(values)

    def largest(self, name: str, values: Tensor) -> None:
        if len(values):
            self._largest[name] = max(self._largest.get(name, float("-inf")), float(values.max()))

    def add_loss(self, name: str, loss: float) -> None:
        """A share of an update's loss. The metric is the mean over the updates."""
        self._sums[name] = self._sums.get(name, 0.0) + loss

    def add_update(self, norm: float, lr: float) -> None:
        self.updates += 1
        self.add("learner/grad_norm", torch.tensor([norm]))
        self._sums["learner/lr"] = lr

    def skip(self, why: str) -> None:
        self.updates += 1
        self._skipped[why] = self._skipped.get(why, 0.0) + 1

    def means(self) -> dict[str, float]:
        means = {k: v / max(1, self._counts.get(k, 1)) for k, v in self._sums.items()}
        for name in means:
            if name.startswith("loss/") and name not in self._counts:
                means[name] /= max(1, self.updates)
        done = self.updates - sum(self._skipped.values())
        return means | self._largest | self._skipped | {"learner/updates": done}
