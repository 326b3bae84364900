"""AdamW on float32 masters: one update at a time, saved and taken up again."""

import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from torl import config
from torl.errors import UserError
from torl.learner.masters import Masters
from torl.model.plain import Plain


class Optimizer:
    """``begin`` an update, ``collect`` after each backward, then ``apply``."""

    def __init__(self, model: nn.Module, kernels: Plain, settings: config.Learner, lr: float) -> None:
        self._masters = Masters(model, kernels)
        self._max_norm = settings.max_grad_norm
        self.begin, self.collect = self._masters.begin, self._masters.collect
        self.adamw = torch.optim.AdamW(
            self._masters.by_name.values(),
            lr=lr,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @property
    def masters(self) -> dict[str, torch.Tensor]:
        return self._masters.by_name

    @property
    def updates(self) -> int:
        """Made so far, those before a load included."""
        return max((int(state["step"]) for state in self.adamw.state.values()), default=0)

    def apply(self, lr: float) -> float:
        """Clips the gradient and updates the weights, and returns the gradient's norm before. Where that is
        not finite, nothing is updated."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.masters.values(), self._max_norm))
        if math.isfinite(norm):
            for group in self.adamw.param_groups:
                group["lr"] = lr
            self.adamw.step()
            self._masters.publish()
        return norm

    def save(self, path: Path) -> None:
        """Writes masters and optimizer state."""
        tensors = {}
        for name, master in self.masters.items():
            tensors[f"master.{name}"] = master.detach()
            for key, value in self.adamw.state.get(master, {}).items():
                tensors[f"{key}.{name}"] = value
        save_file({k: v.contiguous().clone() for k, v in tensors.items()}, path)

    def load(self, path: Path) -> None:
        """Takes up what ``save`` wrote. Raises UserError when it is damaged."""
        try:
            tensors = load_file(path)
            masters = {name: tensors.pop(f"master.{name}") for name in self.masters}
        except (OSError, SafetensorError, KeyError) as error:
            raise UserError(
                f"{path.parent} is damaged ({error}); remove it to go on from the one before"
            ) from error
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(masters[name])
        for key, value in tensors.items():
            field, _, name = key.partition(".")
            master = self.masters[name]
            self.adamw.state[master][field] = value.to(master.device)
        self._masters.publish()
