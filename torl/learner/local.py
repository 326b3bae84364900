"""The second boundary: the learner holds the policy. This one does, in this process."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torl import config
from torl.algorithms.aggregation import AGGREGATIONS
from torl.errors import UserError
from torl.learner.batch import Batch, Sample, packs
from torl.learner.critic import Critic
from torl.learner.forward import Forward
from torl.learner.objective import Objective
from torl.learner.optimizer import Optimizer
from torl.learner.totals import Totals
from torl.memory import keep_freed_memory


class LocalLearner:
    """``logprobs(batch)``, ``update(batch)``, ``save`` and ``load`` on a transformers model.

    The model's weights are updated in place. ``rollout`` says how the samples are made: the policy that is
    trained is the distribution at its temperature. ``reference`` is a frozen model, where the algorithm
    wants one.
    """

    def __init__(
        self,
        model: Any,
        algorithm: config.Algorithm,
        settings: config.Learner,
        rollout: config.Rollout | None = None,
        *,
        reference: Any = None,
        critic: config.Critic | None = None,
    ) -> None:
        rollout = rollout or config.Rollout()
        self.model = model
        self._algorithm = algorithm
        self._settings = settings
        self._longest = rollout.max_completion_tokens
        self.updates = 0  # optimizer updates so far
        self._bad_updates = 0  # of them, the last ones in a row that were skipped
        keep_freed_memory()
        forward = (rollout.temperature, settings.pack_tokens)
        self._forward = Forward(model, *forward, settings.activation_checkpointing)
        self._reference = Forward(reference, *forward) if reference is not None else None
        self._objective = Objective(algorithm)
        self._optimizer = Optimizer(model, self._forward.kernels, settings, settings.lr)
        self._critic = Critic(model, critic or config.Critic(), settings) if algorithm.has_critic else None

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """For each sample, the current log-probability of each of its ids; 0.0 where it does
        not train."""
        return self._forward.logprobs(samples)

    def ref_logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """The same under the reference."""
        assert self._reference is not None
        return self._reference.logprobs(samples)

    def update(self, batch: Batch) -> dict[str, float]:
        """``epochs`` passes over ``mini_batches`` parts of the batch, one optimizer update for
        each. Returns metrics; those of the tokens are means over trained tokens."""
        samples = [s for s in batch.samples if s.trained_tokens]
        judged = self._critic.judge(samples) if self._critic else {}
        matter = [s for s in samples if self._matters(s)]
        if not self._algorithm.on_policy:
            self._fix_old_logprobs(matter)
        if self._objective.needs_reference:
            for sample, values in zip(matter, self.ref_logprobs(matter), strict=True):
                sample.ref_logprobs = values
        totals = Totals()
        policy_waits = self._critic is not None and self._critic.warming_up
        for _ in range(self._algorithm.epochs):
            for part in Batch(samples).split(self._algorithm.mini_batches):
                if policy_waits:
                    totals.skip("critic/warmup_updates")
                else:
                    self._step(part, totals)
                if self._critic:
                    self._critic.step(part.samples, totals)
        return totals.means() | judged | {"learner/trained_tokens": float(batch.trained_tokens)}

    def _matters(self, sample: Sample) -> bool:
        """Whether the loss of the sample has a gradient."""
        return sample.has_signal or self._objective.without_signal

    def _fix_old_logprobs(self, samples: list[Sample]) -> None:
        """The ratio's denominator, before the first update changes the policy."""
        if self._algorithm.old_logprobs == "sampler":
            old = [s.sampler_logprobs for s in samples]
        else:
            old = self.logprobs(samples)
        for sample, values in zip(samples, old, strict=True):
            sample.old_logprobs = values

    def _step(self, batch: Batch, totals: Totals) -> None:
        """One optimizer update. The loss is summed over tokens and divided by what the whole mini-batch
        holds, so it does not depend on how it is packed."""
        lengths = torch.tensor([s.trained_tokens for s in batch.samples], dtype=torch.float64)
        weights, denominator = AGGREGATIONS[self._algorithm.aggregation](lengths, self._longest)
        for sample, weight in zip(batch.samples, weights.tolist(), strict=True):
            sample.weight = weight
        samples = [s for s in batch.samples if self._matters(s)]
        if not samples:
            totals.skip("learner/no_signal_updates")
            return
        self._optimizer.begin()
        for pack in packs(samples, self._forward.pack_tokens):
            loss = self._objective(pack, *self._forward(pack), denominator, totals)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.collect()
        self._apply(totals)

    def _apply(self, totals: Totals) -> None:
        """Updates the weights; counts the update as skipped when the gradient is not finite."""
        lr = self._settings.lr * schedule(self.updates, self._settings)
        norm = self._optimizer.apply(lr)
        if not math.isfinite(norm):
            self._skip(totals)
            return
        self.updates += 1
        self._bad_updates = 0
        totals.add_update(norm, lr)

    def _skip(self, totals: Totals) -> None:
        totals.skip("learner/skipped_updates")
        self._bad_updates += 1
        if self._bad_updates >= self._settings.max_bad_updates:
            raise UserError(
                f"{self._bad_updates} updates in a row had a gradient that is not finite; training stops. "
                "Begin a new run with a lower learner.lr or dtype=float32, from the start or from the last "
                "checkpoint (model=.../checkpoints/step-.../model)"
            )

    # Checkpoints. The folder is the caller's; it makes the whole of it atomic.

    def save(self, folder: Path) -> None:
        """Writes masters and optimizer state; the model itself is saved as a Hugging Face
        folder by the caller."""
        self._optimizer.save(folder / "learner.safetensors")
        if self._critic:
            self._critic.save(folder)

    def load(self, folder: Path, updates: int) -> None:
        """Takes up the state that ``save`` wrote after ``updates`` updates."""
        self._optimizer.load(folder / "learner.safetensors")
        if self._critic:
            self._critic.load(folder)
        self.updates = updates


def schedule(updates: int, settings: config.Learner) -> float:
    """The share of ``lr`` for the update after so many: linear warm-up, then linear decay."""
    rise = min(1.0, (updates + 1) / max(1, settings.warmup_steps))
    if not settings.decay_steps:
        return rise
    return min(rise, max(0.0, 1.0 - (updates - settings.warmup_steps) / settings.decay_steps))
