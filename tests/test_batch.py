"""Packing: shared prompts, no padding, and each trajectory's numbers as if it were alone."""

import itertools
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.learner_kit import (
    VOCABULARY,
    Gradients,
    alone,
    exact,
    gradients,
    learner,
    reference_loss,
    relative_error,
    sample,
    sample_sets,
)
from tests.tiny import tiny_model
from torl.learner.batch import Batch, Sample, _fill, build_pack, packs, sample_of
from torl.types import Completion, StopReason, Task, Trajectory

quick = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ["llama", "qwen2", "qwen3"]


def make(family: str, dtype: torch.dtype = torch.float64) -> Any:
    model = tiny_model(family, tied=family == "llama", vocab_size=VOCABULARY, dtype=dtype)
    return exact(model) if dtype == torch.float64 else model


MODELS = {(f, d): make(f, d) for f in FAMILIES for d in (torch.float32, torch.float64)}


# Layout


def test_a_pack_by_hand() -> None:
    """Two prompts that share [7 8]; the last id of a trajectory is not fed."""
    first = sample([7, 8, 1], [2, 3, 4], [1, 0, 1], advantages=[0.5, math.nan, 0.5])
    second = sample([7, 8, 1], [5], advantage=-0.5)
    third = sample([7, 8], [6, 9], advantage=2.0)
    pack = build_pack([first, second, third])
    assert pack.ids.tolist() == [7, 8, 1, 2, 3, 8, 6]
    assert pack.positions.tolist() == [0, 1, 2, 3, 4, 1, 2]
    assert pack.source.tolist() == [2, 4, 2, 5, 6]
    assert pack.targets.tolist() == [2, 4, 5, 6, 9]
    assert pack.advantages.tolist() == [0.5, 0.5, -0.5, 2.0, 2.0]
    assert pack.old_logprobs is None
    sees = [set(row.nonzero().flatten().tolist()) for row in pack.tree.mask]
    assert sees == [{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}, {0, 5}, {0, 5, 6}]


@quick
@given(sample_sets(), st.integers(1, 80))
def test_each_token_sees_exactly_its_own_past(samples: list[Sample], tokens: int) -> None:
    """What a trained row sees, in order, is the trajectory's ids so far, at positions 0, 1, 2..."""
    for pack, held in _packs_with_samples(samples, tokens):
        rows = iter(pack.source.tolist())
        for one in held:
            whole = one.prompt_ids + one.ids
            for n, trains in enumerate(one.loss_mask):
                if trains:
                    seen = pack.tree.mask[next(rows)].nonzero().flatten()
                    end = len(one.prompt_ids) + n
                    assert pack.ids[seen].tolist() == whole[:end]
                    assert pack.positions[seen].tolist() == list(range(end))
        assert next(rows, None) is None


@quick
@given(sample_sets(), st.integers(1, 80))
def test_packs_keep_order_and_budget_and_compute_a_prompt_once(samples: list[Sample], tokens: int) -> None:
    for pack, held in _packs_with_samples(samples, tokens):
        assert len(pack.ids) <= tokens or len(held) == 1
    whole = build_pack(samples)
    prompts = {tuple(s.prompt_ids) for s in samples}
    at_most = sum(map(len, prompts)) + sum(max(0, len(s.ids) - 1) for s in samples)
    ordered = [tuple(s.prompt_ids) for s in samples]
    if sum(a != b for a, b in itertools.pairwise(ordered)) == len(prompts) - 1:  # grouped
        assert len(whole.ids) <= at_most


@quick
@given(sample_sets(), st.integers(1, 80))
def test_a_pack_is_closed_only_where_the_next_group_would_not_fit(
    samples: list[Sample], tokens: int
) -> None:
    groups = [list(g) for _, g in itertools.groupby(samples, key=lambda s: s.prompt_ids)]
    starts = {sum(map(len, groups[:n])): group for n, group in enumerate(groups)}
    at = 0
    for held, after in itertools.pairwise(_fill(samples, tokens)):
        at += len(held)
        more = starts.get(at, after[:1])  # a group that began in the pack before goes on sample by sample
        assert len(build_pack([*held, *more]).ids) > tokens


def _packs_with_samples(samples: list[Sample], tokens: int) -> Any:
    filled = list(_fill(samples, tokens))
    assert [one for held in filled for one in held] == samples
    return zip(packs(samples, tokens), filled, strict=True)


# Log-probabilities


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_packed_logprobs_are_those_of_each_trajectory_alone(
    family: str, dtype: torch.dtype, tolerance: float
) -> None:
    model = MODELS[family, dtype]

    @quick
    @given(sample_sets(), st.integers(1, 120), st.sampled_from([0.7, 1.0, 1.3]))
    def check(samples: list[Sample], tokens: int, temperature: float) -> None:
        found = learner(model, temperature=temperature, pack_tokens=tokens).logprobs(samples)
        for one, values in zip(samples, found, strict=True):
            assert values == pytest.approx(alone(model, one, temperature), abs=tolerance), one

    check()


SHAPES: dict[str, list[Sample]] = {
    "one prompt": [sample([1, 2, 3], [4, 5]), sample([1, 2, 3], [6])],
    "a prefix of another": [sample([1, 2], [3, 4]), sample([1, 2, 3], [4, 5]), sample([1], [2, 3])],
    "another's prefix comes last": [sample([1, 2, 3, 4], [5]), sample([1, 2], [3])],
    "prompts of one id": [sample([1], [2, 3]), sample([2], [3]), sample([1], [4])],
    "nothing shared": [sample([1, 2], [3]), sample([3, 2], [1])],
    "an empty completion": [sample([1, 2], []), sample([1, 2], [3, 4]), sample([5], [])],
    "only empty completions": [sample([1, 2], []), sample([3], [])],
    "nothing trains": [sample([1, 2], [3, 4], [0, 0]), sample([1, 2], [5], [0])],
    "an observation first, last": [sample([1, 2], [3, 4, 5, 6], [0, 1, 1, 0])],
    "the prompt comes back": [sample([1, 2], [3]), sample([4], [3]), sample([1, 2], [5, 6])],
    "the same trajectory twice": [sample([1, 2], [3, 4]), sample([1, 2], [3, 4])],
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    model = MODELS["qwen2", torch.float64]
    for tokens in (1, 8, 1000):
        found = learner(model, pack_tokens=tokens).logprobs(SHAPES[name])
        for one, values in zip(SHAPES[name], found, strict=True):
            assert values == pytest.approx(alone(model, one), abs=1e-10)


# The gradient of the whole loss


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_the_plain_padded_computation(family: str) -> None:
    model = MODELS[family, torch.float64]

    @quick
    @given(sample_sets(), st.sampled_from([1, 20, 45, 10_000]), st.sampled_from([0.8, 1.0]), st.booleans())
    def check(samples: list[Sample], tokens: int, temperature: float, off_policy: bool) -> None:
        if off_policy:
            for one in samples:  # ratios on both sides of the clip
                noise = random.Random(len(one.ids))
                one.old_logprobs = [v + noise.gauss(0, 0.3) for v in alone(model, one, temperature)]
        subject = learner(model, Gradients, temperature, {"clip_high": 0.28}, pack_tokens=tokens)
        metrics = subject.update(Batch(samples))
        loss = reference_loss(model, samples, temperature, clip_high=0.28)
        if not any(s.has_signal for s in samples):
            assert subject.seen == []
            return
        assert relative_error(subject.seen[0], gradients(model, loss)) < 1e-9
        assert metrics["loss/policy"] == pytest.approx(loss.item(), abs=1e-10)

    check()


@quick
@given(sample_sets(), st.integers(0, 99), st.sampled_from([1, 30, 10_000]))
def test_neither_order_nor_packing_changes_the_gradient(
    samples: list[Sample], seed: int, tokens: int
) -> None:
    model = MODELS["llama", torch.float64]
    whole = learner(model, Gradients, pack_tokens=100_000)
    whole.update(Batch(samples))
    shuffled = random.Random(seed).sample(samples, len(samples))
    other = learner(model, Gradients, pack_tokens=tokens)
    other.update(Batch(shuffled))
    assert len(whole.seen) == len(other.seen)
    for a, b in zip(whole.seen, other.seen, strict=True):
        assert relative_error(a, b) < 1e-9


# What must not leak


@quick
@given(sample_sets(), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_nothing_at_untrained_positions_leaks(samples: list[Sample], poison: float) -> None:
    model = MODELS["qwen3", torch.float64]
    clean = learner(model, Gradients)
    wanted = clean.update(Batch(samples))
    for one in samples:
        for field in ("advantages", "sampler_logprobs"):
            kept = zip(getattr(one, field), one.loss_mask, strict=True)
            setattr(one, field, [v if trains else poison for v, trains in kept])
    dirty = learner(model, Gradients)
    found = dirty.update(Batch(samples))
    assert found == wanted
    for a, b in zip(clean.seen, dirty.seen, strict=True):
        assert all(torch.equal(a[n], b[n]) for n in a)


def test_an_observation_counts_through_the_context_alone() -> None:
    """Ids that no trained id follows change nothing; others change only what comes after them."""
    model = MODELS["llama", torch.float64]
    mask = [1, 1, 0, 0, 1, 1, 0, 0]
    ids = [3, 4, 5, 6, 7, 8, 9, 10]
    base = learner(model).logprobs([sample([1, 2], ids, mask)])[0]
    noise = random.Random(0)
    for _ in range(5):
        last = [*ids[:6], noise.randrange(VOCABULARY), noise.randrange(VOCABULARY)]
        assert learner(model).logprobs([sample([1, 2], last, mask)])[0] == base
        middle = [*ids[:2], noise.randrange(VOCABULARY), noise.randrange(VOCABULARY), *ids[4:]]
        changed = sample([1, 2], middle, mask)
        found = learner(model).logprobs([changed])[0]
        assert found[:2] == pytest.approx(base[:2], abs=1e-10)
        assert found == pytest.approx(alone(model, changed), abs=1e-10)
        subject = learner(model, Gradients)
        subject.update(Batch([changed]))
        assert relative_error(subject.seen[0], gradients(model, reference_loss(model, [changed]))) < 1e-9


# Samples and batches


def test_a_trajectory_becomes_a_sample() -> None:
    trajectory = Trajectory(Task("t", "?", "1"), 3, prompt_ids=[1, 2])
    trajectory.append_completion(Completion([5, 6], [-0.5, -0.25], StopReason.STOP), "ab")
    trajectory.append_observation([7], "c")
    trajectory.advantage = 0.5
    made = sample_of(trajectory)
    assert (made.name, made.prompt_ids, made.ids) == ("t#3", [1, 2], [5, 6, 7])
    assert (made.loss_mask, made.advantages) == ([1, 1, 0], [0.5] * 3)
    assert made.sampler_logprobs == [-0.5, -0.25, 0.0]
    assert (made.trained_tokens, made.has_signal) == (2, True)
    assert trajectory.truncated  # its stop reason is LENGTH until said otherwise
    cut = sample_of(trajectory, trains=False)
    assert (cut.loss_mask, cut.has_signal) == ([0, 0, 0], False)


def test_a_batch_splits_into_nearly_equal_parts_in_order() -> None:
    batch = Batch([sample([1], [2], name=str(n)) for n in range(7)])
    names = [[s.name for s in part.samples] for part in batch.split(3)]
    assert names == [["0", "1"], ["2", "3"], ["4", "5", "6"]]
    assert [len(part.samples) for part in Batch(batch.samples[:2]).split(4)] == [0, 1, 0, 1]
