"""From trajectories to the tensors of a forward pass, without padding and without computing
the same prompt twice.

A pack is one sequence of tokens in which several trajectories lie behind a shared prompt::

    tokens     [ shared head | rest of prompt a | a1 | a2 | rest of prompt b | b1 | ...]
    positions    0 ...         continue           each continues at its prompt's end

Each token sees its own segment up to itself, and the segments that come before it in its own
trajectory (torl.model.tree); so each trajectory's numbers are those it has alone. Shapes: T tokens
of a pack, M trained tokens of it.
"""

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torl.model.tree import Tree
from torl.types import Trajectory

F64 = torch.float64


@dataclass
class Sample:
    """One trajectory as the learner sees it. The lists have the length of ``ids``."""

    name: str
    prompt_ids: list[int]
    ids: list[int]
    loss_mask: list[int]
    advantages: list[float]
    sampler_logprobs: list[float]
    old_logprobs: list[float] | None = None
    ref_logprobs: list[float] | None = None
    values: list[float] | None = None  # the critic's, and the returns that it learns
    returns: list[float] | None = None
    turn_ends: list[int] = field(default_factory=list)  # where each turn's sampled ids end
    weight: float = 1.0  # of its tokens' losses (torl/algorithms/aggregation.py)

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask)

    @property
    def trained(self) -> list[int]:
        """Where ids train, as positions in ``ids``."""
        return [n for n, trains in enumerate(self.loss_mask) if trains]

    @property
    def turns(self) -> list[int]:
        """For each trained id the number of its turn."""
        return [bisect.bisect_right(self.turn_ends, n) for n in self.trained]

    @property
    def fed(self) -> list[int]:
        """The ids of a forward pass: the last predicts nothing."""
        return self.ids[:-1]

    @property
    def has_signal(self) -> bool:
        return any(a != 0 for a, m in zip(self.advantages, self.loss_mask, strict=True) if m)


@dataclass
class Batch:
    """The samples of one training step, or of one mini-batch of it. ``trained_tokens`` counts those
    of all samples, with signal or without: an update's loss is divided by its mini-batch's."""

    samples: list[Sample]

    @property
    def trained_tokens(self) -> int:
        return sum(sample.trained_tokens for sample in self.samples)

    def split(self, parts: int) -> list["Batch"]:
        """Contiguous mini-batches of nearly equal numbers of samples."""
        bounds = [len(self.samples) * i // parts for i in range(parts + 1)]
        return [Batch(self.samples[a:b]) for a, b in itertools.pairwise(bounds)]


def sample_of(trajectory: Trajectory, trains: bool = True) -> Sample:
    """A judged trajectory as a sample, with an empty mask unless it trains."""
    return Sample(
        name=trajectory.id,
        prompt_ids=trajectory.prompt_ids,
        ids=trajectory.ids,
        loss_mask=trajectory.loss_mask if trains else [0] * len(trajectory.ids),
        advantages=[trajectory.advantage] * len(trajectory.ids),
        sampler_logprobs=trajectory.sampler_logprobs,
        turn_ends=[turn.end for turn in trajectory.turns],
    )


@dataclass
class Pack:
    """One forward pass. Row m trains: the logits at ``source[m]`` predict ``targets[m]``."""

    ids: Tensor  # (T,)
    positions: Tensor  # (T,)
    tree: Tree  # which token sees which
    source: Tensor  # (M,) index into the T tokens
    targets: Tensor  # (M,)
    trajectory: Tensor  # (M,) number of the sample in the pack
    weights: Tensor  # (M,) float64, as are the next six: the loss takes its own dtype
    advantages: Tensor  # (M,)
    sampler_logprobs: Tensor  # (M,)
    old_logprobs: Tensor | None  # (M,)
    ref_logprobs: Tensor | None  # (M,)
    values: Tensor | None  # (M,)
    returns: Tensor | None  # (M,)


def packs(samples: Sequence[Sample], tokens: int) -> Iterator[Pack]:
    """Packs of at most ``tokens`` tokens, samples in their order; one that is longer by itself gets a
    pack of its own. A group, samples of one prompt side by side, is split only when it is longer than
    a pack. Samples without trained tokens are left out by the caller."""
    return map(build_pack, _fill(samples, tokens))


def _fill(samples: Sequence[Sample], tokens: int) -> Iterator[list[Sample]]:
    held: list[Sample] = []
    prompts: list[list[int]] = []
    behind = 0  # ids of the held completions
    for prompt_ids, group in itertools.groupby(samples, key=lambda sample: sample.prompt_ids):
        members = list(group)
        whole = _prompt_tokens([*prompts, prompt_ids]) + behind + sum(len(s.fed) for s in members)
        if held and whole > tokens:
            yield held
            held, prompts, behind = [], [], 0
        prompts.append(prompt_ids)
        ahead = _prompt_tokens(prompts)
        for sample in members:
            if held and ahead + behind + len(sample.fed) > tokens:
                yield held
                held, prompts, behind, ahead = [], [prompt_ids], 0, len(prompt_ids)
            held.append(sample)
            behind += len(sample.fed)
    if held:
        yield held


def _prompt_tokens(prompts: list[list[int]]) -> int:
    """Tokens that the prompts of one pack take."""
    shared = _shared_head(prompts)
    return shared + sum(len(prompt) - shared for prompt in prompts)


def build_pack(samples: Sequence[Sample]) -> Pack:
    """Lays the samples out as in the picture above."""
    layout = _Layout()
    shared = _shared_head([s.prompt_ids for s in samples])
    head = layout.add(samples[0].prompt_ids[:shared], parent=-1)
    prompt, prompt_ids = head, samples[0].prompt_ids[:shared]
    for sample in samples:
        if sample.prompt_ids != prompt_ids:
            prompt, prompt_ids = layout.add(sample.prompt_ids[shared:], parent=head), sample.prompt_ids
        layout.add(sample.fed, parent=prompt)
        layout.train(sample, prompt)
    return layout.pack()


def _shared_head(prompts: list[list[int]]) -> int:
    """How many ids all prompts begin with. All of it, when there is one prompt only."""
    first, last = min(prompts), max(prompts)  # in the order of a dictionary, so all others lie between
    if first == last:
        return len(first)
    same = (a == b for a, b in zip(first, last, strict=False))
    shared = sum(itertools.takewhile(bool, same))
    return min(shared, min(map(len, prompts)) - 1)  # each rest keeps an id to predict from


class _Layout:
    """Segments laid one behind the other, each behind its parent in its sequence."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.sizes: list[int] = []
        self.parents: list[int] = []
        self.last: list[int] = []  # index of the last token at the end of each segment's line
        self.source: list[int] = []
        self.samples: list[Sample] = []

    def add(self, ids: list[int], parent: int) -> int:
        """Lays a segment behind all others. ``parent`` is the segment it continues, -1 for none."""
        before = self.last[parent] if parent >= 0 else -1
        start = self.positions[before] + 1 if before >= 0 else 0
        self.ids += ids
        self.positions += range(start, start + len(ids))
        self.sizes.append(len(ids))
        self.parents.append(parent)
        self.last.append(len(self.ids) - 1 if ids else before)
        return len(self.sizes) - 1

    def train(self, sample: Sample, prompt: int) -> None:
        """Notes the trained ids of a sample: id n is predicted by id n-1, the first by the prompt."""
        first = len(self.ids) - len(sample.fed)
        self.samples.append(sample)
        self.source += [first + n - 1 if n > 0 else self.last[prompt] for n in sample.trained]

    def pack(self) -> Pack:
        sizes = torch.tensor([len(s.trained) for s in self.samples], dtype=torch.long)
        return Pack(
            ids=torch.tensor(self.ids, dtype=torch.long),
            positions=torch.tensor(self.positions, dtype=torch.long),
            tree=Tree(self.sizes, self.parents),
            source=torch.tensor(self.source, dtype=torch.long),
            targets=torch.tensor([s.ids[n] for s in self.samples for n in s.trained], dtype=torch.long),
            trajectory=torch.arange(len(sizes)).repeat_interleave(sizes),
            weights=torch.tensor([s.weight for s in self.samples], dtype=F64).repeat_interleave(sizes),
            advantages=self._numbers([s.advantages for s in self.samples]),
            sampler_logprobs=self._numbers([s.sampler_logprobs for s in self.samples]),
            old_logprobs=self._if_all([s.old_logprobs for s in self.samples]),
            ref_logprobs=self._if_all([s.ref_logprobs for s in self.samples]),
            values=self._if_all([s.values for s in self.samples]),
            returns=self._if_all([s.returns for s in self.samples]),
        )

    def _numbers(self, of_each: Sequence[list[float]]) -> Tensor:
        """The trained tokens' numbers, from lists with one for each id."""
        both = zip(self.samples, of_each, strict=True)
        return torch.tensor([values[n] for s, values in both for n in s.trained], dtype=F64)

    def _if_all(self, of_each: Sequence[list[float] | None]) -> Tensor | None:
        there = [values for values in of_each if values is not None]
        return self._numbers(there) if len(there) == len(of_each) else None
