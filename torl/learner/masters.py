"""Wide copies of narrow weights, so that small updates are not rounded away.

A bfloat16 weight of 1.0 does not change when 1e-5 is added. So the optimizer works on float32
masters, gradients are summed in float32, and the narrow weights are what masters round to.
Weights that are float32 (or wider) already are their own masters.
"""

import torch
from torch import Tensor, nn

from torl.model.plain import Plain


class Masters:
    """Masters of a model's trainable parameters, by name. ``begin`` an update, ``collect`` gradients
    after each backward; ``publish`` after the update."""

    def __init__(self, model: nn.Module, kernels: Plain) -> None:
        self._params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._kernels = kernels
        self.by_name = {name: self._master(p) for name, p in self._params.items()}

    @staticmethod
    def _master(param: nn.Parameter) -> Tensor:
        narrow = torch.finfo(param.dtype).bits < 32
        return param.detach().float().requires_grad_() if narrow else param

    def begin(self) -> None:
        """No gradient yet. The masters' memory for it is kept: new memory costs more than the sums."""
        for name, param in self._params.items():
            param.grad, master = None, self.by_name[name]
            if master is param:
                continue
            if master.grad is None:
                master.grad = torch.zeros_like(master)
            else:
                master.grad.zero_()

    @torch.no_grad()
    def collect(self) -> None:
        """Adds the gradients of the narrow weights to those of their masters."""
        for name, param in self._params.items():
            master = self.by_name[name]
            if master is param or param.grad is None:
                continue
            assert master.grad is not None
            self._kernels.accumulate(master.grad, param.grad)
            param.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Writes the masters into the model's weights, in place: whoever shares them sees it."""
        for name, param in self._params.items():
            if self.by_name[name] is not param:
                param.copy_(self.by_name[name])
