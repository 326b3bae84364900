"""The second boundary: the learner holds the policy. This one does, in this process."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from torl import config
from torl.algorithms.losses import ppo_clip
from torl.errors import UserError
from torl.learner.batch import Batch, Pack, Sample, packs
from torl.learner.masters import Masters
from torl.memory import keep_freed_memory
from torl.model.logprobs import chosen_logprobs
from torl.model.network import Network, unsupported
from torl.model.plain import Plain


class LocalLearner:
    """``logprobs(batch)``, ``update(batch)``, ``save`` and ``load`` on a transformers model.

    The model's weights are updated in place. ``temperature`` is the sampler's: the policy that
    is trained is the distribution that was sampled.
    """

    def __init__(
        self,
        model: Any,
        algorithm: config.Algorithm,
        settings: config.Learner,
        temperature: float = 1.0,
    ) -> None:
        self.model = model
        self._algorithm = algorithm
        self._settings = settings
        self._temperature = temperature
        self.updates = 0  # optimizer updates so far
        self._bad_updates = 0  # of them, the last ones in a row that were skipped
        keep_freed_memory()
        model.eval()  # dropout stays off, as it is when the policy samples
        self._network = Network(model) if unsupported(model) is None else None
        self._pack_tokens = settings.pack_tokens if self._network else 1  # a foreign model takes one sample
        if self._network is None and settings.activation_checkpointing:
            _recompute_activations(model)
        self._kernels = self._network.kernels if self._network else Plain(1, 1, 1)
        self._masters = Masters(model, self._kernels)
        self._optimizer = torch.optim.AdamW(
            self._masters.by_name.values(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """For each sample, the current log-probability of each of its ids; 0.0 where it does
        not train."""
        found: list[float] = []
        for pack in packs(samples, self._pack_tokens):
            found += self._forward(pack)[0].tolist()
        numbers = iter(found)
        return [[next(numbers) if trains else 0.0 for trains in s.loss_mask] for s in samples]

    def update(self, batch: Batch) -> dict[str, float]:
        """``epochs`` passes over ``mini_batches`` parts of the batch, one optimizer update for
        each. Returns metrics; those of the tokens are means over trained tokens."""
        updates = self._algorithm.epochs * self._algorithm.mini_batches
        samples = [s for s in batch.samples if s.trained_tokens]
        if updates > 1:
            self._fix_old_logprobs([s for s in samples if s.has_signal])
        totals = _Totals()
        for _ in range(self._algorithm.epochs):
            for part in Batch(samples).split(self._algorithm.mini_batches):
                self._step(part, totals)
        return totals.means() | {"learner/trained_tokens": float(batch.trained_tokens)}

    def _fix_old_logprobs(self, samples: list[Sample]) -> None:
        """The ratio's denominator, before the first update changes the policy."""
        if self._algorithm.old_logprobs == "sampler":
            old = [s.sampler_logprobs for s in samples]
        else:
            old = self.logprobs(samples)
        for sample, values in zip(samples, old, strict=True):
            sample.old_logprobs = values

    def _step(self, batch: Batch, totals: "_Totals") -> None:
        """One optimizer update. The loss is summed over tokens and divided by the number of
        trained tokens of the whole mini-batch, so it does not depend on how it is packed."""
        denominator = batch.trained_tokens
        samples = [s for s in batch.samples if s.has_signal]
        if not samples:
            totals.skip("learner/no_signal_updates")
            return
        self._masters.begin()
        for pack in packs(samples, self._pack_tokens):
            loss = self._loss(pack, totals) / denominator
            loss.backward()  # type: ignore[no-untyped-call]
            self._masters.collect()
            totals.add_loss(float(loss.detach()))
        self._apply(totals)

    def _loss(self, pack: Pack, totals: "_Totals") -> Tensor:
        """Sum of the token losses of a pack."""
        logprobs, entropy = self._forward(pack)
        now = logprobs.detach()
        old = pack.old_logprobs.to(now) if pack.old_logprobs is not None else now
        clips = self._algorithm.clip_low, self._algorithm.clip_high
        loss, clipped = ppo_clip(logprobs, old, pack.advantages.to(now), *clips)
        ratio = torch.exp(now - old)
        gap = (now - pack.sampler_logprobs.to(now)).abs()
        totals.add_tokens(ratio, clipped, entropy, gap if totals.updates == 0 else None)
        return loss.sum()

    def _forward(self, pack: Pack) -> tuple[Tensor, Tensor]:
        """Log-probabilities (M,) and entropies (M,) of a pack's trained tokens."""
        network, device = self._network, self.model.device
        if network is None:
            return self._forward_foreign(pack)
        hidden = network.run(
            pack.ids.to(device),
            pack.positions.to(device),
            lambda _, qkv: self._kernels.attend_tree(qkv, pack.tree),
            recompute=self._settings.activation_checkpointing,
        )
        head, targets = self.model.get_output_embeddings().weight, pack.targets.to(device)
        chosen = hidden[pack.source.to(device)]
        return chosen_logprobs(chosen, head, targets, self._temperature, self._kernels)

    def _forward_foreign(self, pack: Pack) -> tuple[Tensor, Tensor]:
        """The same by the model's own forward pass, of a pack that holds one sample."""
        device = self.model.device
        logits = self.model(input_ids=pack.ids[None].to(device), use_cache=False).logits[0]
        rows, targets = logits[pack.source.to(device)], pack.targets.to(device)
        chosen, entropy, _ = self._kernels.logprobs(rows, targets, self._temperature)
        return chosen, entropy.detach()

    def _apply(self, totals: "_Totals") -> None:
        """Clips the gradient and updates; skips the update when the gradient is not finite."""
        norm = torch.nn.utils.clip_grad_norm_(self._masters.by_name.values(), self._settings.max_grad_norm)
        lr = self._settings.lr * schedule(self.updates, self._settings)
        if not math.isfinite(float(norm)):
            self._skip(totals)
            return
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._masters.publish()
        self.updates += 1
        self._bad_updates = 0
        totals.add_update(float(norm), lr)

    def _skip(self, totals: "_Totals") -> None:
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
        tensors = {}
        for name, master in self._masters.by_name.items():
            tensors[f"master.{name}"] = master.detach()
            for key, value in self._optimizer.state.get(master, {}).items():
                tensors[f"{key}.{name}"] = value
        contiguous = {k: v.contiguous().clone() for k, v in tensors.items()}
        save_file(contiguous, folder / "learner.safetensors")

    def load(self, folder: Path, updates: int) -> None:
        """Takes up the state that ``save`` wrote after ``updates`` updates."""
        try:
            tensors = load_file(folder / "learner.safetensors")
            masters = {name: tensors.pop(f"master.{name}") for name in self._masters.by_name}
        except (OSError, SafetensorError, KeyError) as error:
            raise UserError(
                f"{folder} is damaged ({error}); remove it to go on from the one before"
            ) from error
        with torch.no_grad():
            for name, master in self._masters.by_name.items():
                master.copy_(masters[name])
        for key, value in tensors.items():
            field, _, name = key.partition(".")
            master = self._masters.by_name[name]
            self._optimizer.state[master][field] = value.to(master.device)
        self._masters.publish()
        self.updates = updates


def _recompute_activations(model: Any) -> None:
    """Of transformers' activation checkpointing, only the layers that recompute are in train mode, and
    nothing inside them: dropout stays off."""
    # The second name is that of older versions of transformers.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for module in model.modules():
        module.training = isinstance(module, GradientCheckpointingLayer)


def schedule(updates: int, settings: config.Learner) -> float:
    """The share of ``lr`` for the update after so many: linear warm-up, then linear decay."""
    rise = min(1.0, (updates + 1) / max(1, settings.warmup_steps))
    if not settings.decay_steps:
        return rise
    return min(rise, max(0.0, 1.0 - (updates - settings.warmup_steps) / settings.decay_steps))


class _Totals:
    """Sums of what the updates of one batch did."""

    def __init__(self) -> None:
        self.updates = 0
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._skipped = {"learner/no_signal_updates": 0.0, "learner/skipped_updates": 0.0}

    def add_tokens(self, ratio: Tensor, clipped: Tensor, entropy: Tensor, gap: Tensor | None) -> None:
        self._add("learner/ratio_mean", ratio)
        self._add("learner/clip_ratio", clipped.float())
        self._add("loss/entropy", entropy)
        if gap is not None:  # later updates compare with a policy that has moved on
            self._add("sampler/logprob_gap", gap)

    def add_loss(self, loss: float) -> None:
        self._sums["loss/policy"] = self._sums.get("loss/policy", 0.0) + loss

    def add_update(self, norm: float, lr: float) -> None:
        self.updates += 1
        self._add("learner/grad_norm", torch.tensor([norm]))
        self._sums["learner/lr"] = lr

    def skip(self, why: str) -> None:
        self.updates += 1
        self._skipped[why] += 1

    def _add(self, name: str, values: Iterable[float] | Tensor) -> None:
        values = torch.as_tensor(values).double()
        self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())
        self._counts[name] = self._counts.get(name, 0) + len(values)

    def means(self) -> dict[str, float]:
        means = {k: v / max(1, self._counts.get(k, 1)) for k, v in self._sums.items()}
        if "loss/policy" in means:
            means["loss/policy"] /= max(1, self.updates)
        done = self.updates - sum(self._skipped.values())
        return means | self._skipped | {"learner/updates": done}
