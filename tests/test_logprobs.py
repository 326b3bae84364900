"""Log-probabilities of chosen ids, and their gradient, against log_softmax."""

import pytest
import torch
from torch import Tensor

from torl.model import logprobs
from torl.model.plain import Plain

pytestmark = pytest.mark.usefixtures("one_thread")

F64 = torch.float64


def chosen_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    return logprobs.chosen_logprobs(hidden, weight, targets, temperature, Plain(1, 1, 1))


@pytest.mark.parametrize("chunk", [1, 3, 512])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
def test_chosen_logprobs_equals_log_softmax(
    monkeypatch: pytest.MonkeyPatch, chunk: int, temperature: float
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK", chunk)
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, dtype=F64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=F64, requires_grad=True)
    targets = torch.randint(11, (7,))
    upstream = torch.randn(7, dtype=F64)

    found, entropy = chosen_logprobs(hidden, weight, targets, temperature)
    grads = torch.autograd.grad((found * upstream).sum(), (hidden, weight))

    rows = torch.log_softmax(hidden @ weight.T / temperature, -1)
    wanted = rows.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy, -(rows.exp() * rows).sum(-1), rtol=1e-12, atol=1e-12)
    for a, b in zip(grads, torch.autograd.grad((wanted * upstream).sum(), (hidden, weight)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)

    def both(h: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return chosen_logprobs(h, w, targets, temperature)

    for function in (both, lambda h, w: both(h, w)[0], lambda h, w: both(h, w)[1]):
        assert torch.autograd.gradcheck(function, (hidden, weight))


def test_chosen_logprobs_of_nothing_and_of_certainty() -> None:
    hidden = torch.zeros(0, 5, requires_grad=True)
    found, entropy = chosen_logprobs(hidden, torch.ones(11, 5), torch.zeros(0, dtype=torch.long))
    assert len(found) == len(entropy) == 0
    found.sum().backward()
    sure = torch.tensor([[1e4, 0.0]])
    found, entropy = chosen_logprobs(sure, torch.eye(2), torch.tensor([0]))
    assert (found.item(), entropy.item()) == (0.0, 0.0)


def test_chosen_logprobs_of_narrow_weights_are_wide() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(9, 16).bfloat16(), torch.randn(33, 16).bfloat16().requires_grad_()
    targets = torch.arange(9)
    found, entropy = chosen_logprobs(hidden, weight, targets)
    wanted = torch.log_softmax((hidden @ weight.T).float(), -1)[targets, targets]
    assert found.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(found, wanted)
    found.sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16
