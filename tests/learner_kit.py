"""What the learner's tests share: random samples, and the whole loss written down again.

The reference runs each trajectory alone, or all of them padded, through transformers' own
forward, takes log_softmax of all logits, and loops over tokens.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tiny import tiny_model
from torl import config
from torl.learner.batch import Batch, Sample
from torl.learner.local import LocalLearner
from torl.learner.totals import Totals

VOCABULARY = 60


@contextmanager
def single_thread() -> Iterator[None]:
    """Tiny matrices gain nothing from a second thread, and lose much to it on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def sample(
    prompt: list[int],
    ids: list[int],
    mask: list[int] | None = None,
    advantage: float = 1.0,
    name: str = "t#0",
    **fields: Any,
) -> Sample:
    n = len(ids)
    values = {"advantages": [advantage] * n, "sampler_logprobs": [-1.0] * n} | fields
    return Sample(name, prompt, ids, mask if mask is not None else [1] * n, **values)


@st.composite
def sample_sets(draw: st.DrawFn, max_prompts: int = 3) -> list[Sample]:
    """Several prompts, often with a common head, some a prefix of another or one id long; a few
    trajectories of each with observations between; empty ones and ones that do not train too."""
    random = Random(draw(st.integers(0, 2**32)))
    words = list(range(VOCABULARY))
    trunk = random.choices(words, k=draw(st.integers(1, 12)))
    samples: list[Sample] = []
    for p in range(draw(st.integers(1, max_prompts))):
        head = trunk[: draw(st.integers(0, len(trunk)))]
        prompt = head + random.choices(words, k=draw(st.integers(0 if head else 1, 5)))
        for n in range(draw(st.integers(1, 4))):
            length = draw(st.integers(0, 14))
            mask = random.choices([0, 1, 1], k=length) if random.random() < 0.9 else [0] * length
            samples.append(
                sample(
                    prompt,
                    random.choices(words, k=length),
                    mask,
                    name=f"{p}#{n}",
                    advantages=[random.choice([0.0, random.gauss(0, 1)])] * length,
                    sampler_logprobs=[random.uniform(-6, 0) if m else 0.0 for m in mask],
                )
            )
    return samples


def alone(model: Any, one: Sample, temperature: float = 1.0) -> list[float]:
    """Log-probabilities of a trajectory's ids run by itself, without padding; 0.0 where untrained."""
    if not one.ids:
        return []
    with torch.no_grad():
        logits = model(torch.tensor([one.prompt_ids + one.ids])).logits[0]
    rows = torch.log_softmax(logits[len(one.prompt_ids) - 1 : -1] / temperature, -1)
    chosen = rows.gather(1, torch.tensor(one.ids)[:, None])[:, 0].tolist()
    return [value if trains else 0.0 for value, trains in zip(chosen, one.loss_mask, strict=True)]


def reference_loss(
    model: Any,
    samples: Sequence[Sample],
    temperature: float = 1.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Tensor:
    """The whole loss, from one padded forward pass: a sum over trained tokens, divided by their
    number, that of samples without signal included."""
    longest = max(len(s.prompt_ids) + len(s.ids) for s in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    exists = torch.zeros_like(ids)
    for row, s in enumerate(samples):
        both = s.prompt_ids + s.ids
        ids[row, : len(both)] = torch.tensor(both)
        exists[row, : len(both)] = 1
    rows = torch.log_softmax(model(ids, attention_mask=exists).logits / temperature, -1)
    total = rows.new_zeros(())
    for row, s in enumerate(samples):
        for n, (token, trains) in enumerate(zip(s.ids, s.loss_mask, strict=True)):
            if not trains:
                continue
            logprob = rows[row, len(s.prompt_ids) + n - 1, token]
            old = s.old_logprobs[n] if s.old_logprobs is not None else logprob.detach()
            ratio = (logprob - old).exp()
            advantage = s.advantages[n]
            bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
            total = total - torch.minimum(ratio * advantage, bounded * advantage)
    return total / max(1, sum(sum(s.loss_mask) for s in samples))


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    return take_gradients(model)


def take_gradients(model: Any) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def relative_error(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """L2 norm of the difference over the L2 norm of what is wanted, all parameters together."""
    assert found.keys() == wanted.keys()
    difference = sum(float((found[n] - wanted[n]).double().square().sum()) for n in wanted) ** 0.5
    norm = sum(float(wanted[n].double().square().sum()) for n in wanted) ** 0.5
    return difference / norm if norm else difference


class Gradients(LocalLearner):
    """A learner that keeps each update's gradients (and lets the first ``halt`` change nothing)."""

    halt = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[dict[str, Tensor]] = []

    def _apply(self, totals: Totals) -> None:
        masters = self._optimizer.masters.items()
        self.seen.append({n: m.grad.clone() for n, m in masters if m.grad is not None})
        if self.halt:
            totals.add_update(0.0, 0.0)
            return
        super()._apply(totals)


def learner(
    model: Any,
    kind: type[LocalLearner] = LocalLearner,
    temperature: float = 1.0,
    algorithm: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    rollout = config.Rollout(temperature=temperature)
    return kind(model, config.Algorithm(**algorithm or {}), config.Learner(**settings), rollout)


def weights(model: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def exact(model: Any) -> Any:
    """transformers takes its norms in float32, in a float64 model too. This one does not."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = functools.partial(_norm, module)
    return model


def _norm(module: Any, x: Tensor) -> Tensor:
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
    return module.weight * (x * scale)  # type: ignore[no-any-return]


def model_of(dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    model = tiny_model("llama", tied=True, vocab_size=VOCABULARY, dtype=dtype, seed=seed)
    return exact(model) if dtype == torch.float64 else model


def batch_of(*advantages: float, length: int = 6) -> Batch:
    """One sample for each advantage, in groups of two that share a prompt."""
    samples = []
    for n, advantage in enumerate(advantages):
        ids = [(7 * n + k * k) % VOCABULARY for k in range(length)]
        mask = [1, 1, 0, 1, 1, 1][:length]
        samples.append(sample([1, 2, 3 + n // 2], ids, mask, advantage, name=f"t#{n}"))
    return Batch(samples)


BATCH = (1.0, -1.0, 0.5, -0.5)  # advantages: two groups of two
