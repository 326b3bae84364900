"""One id a row from one uniform number: the right distribution, the right log-probability."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torl.model.draw import BLOCK, draw

ALMOST_ONE = float(np.nextafter(1.0, 0.0))
SIZES = [1, 2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 49152]


def rows(
    logits: torch.Tensor, uniforms: list[float], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """draw() of the same logits (V,) with many uniforms."""
    n = len(uniforms)
    return draw(
        logits.expand(n, -1), torch.tensor(uniforms, dtype=torch.float64), torch.full((n,), temperature)
    )


def reference_edges(logits: torch.Tensor, temperature: float) -> np.ndarray:
    """The running sum of softmax(logits / temperature) in float64."""
    scaled = logits.double().numpy() / temperature
    weights = np.exp(scaled - scaled.max())
    return np.cumsum(weights) / weights.sum()


def random_logits(size: int, seed: int, spread: float = 3.0) -> torch.Tensor:
    return spread * torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("size", [5, BLOCK + 30])
def test_frequencies_are_those_of_softmax(size: int, temperature: float) -> None:
    """Chi-square, over cells that are expected 20 times at least; seeded, so it never flickers."""
    logits = random_logits(size, seed=size, spread=1.0)
    uniforms = np.random.default_rng(1).random(40_000)
    ids, _ = rows(logits, uniforms.tolist(), temperature)
    counts = torch.bincount(ids, minlength=size).double()
    expected = torch.softmax(logits.double() / temperature, -1) * len(uniforms)
    large = expected >= 20
    chi_square = ((counts - expected)[large] ** 2 / expected[large]).sum().item()
    freedom = int(large.sum()) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


@given(
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.1, 4.0),
    uniforms=st.lists(st.floats(0.0, ALMOST_ONE), min_size=1, max_size=8),
    forbidden=st.floats(0.0, 0.9),
)
@settings(max_examples=150, deadline=None)
def test_equals_the_inverse_of_the_running_sum(
    size: int, seed: int, temperature: float, uniforms: list[float], forbidden: float
) -> None:
    """A float64 reference: u falls between the drawn id's edges, to float32 rounding; the
    log-probability is log_softmax's; ids of probability 0 are never drawn."""
    logits = random_logits(size, seed)
    mask = torch.rand(size, generator=torch.Generator().manual_seed(seed)) < forbidden
    mask[seed % size] = False
    logits = logits.masked_fill(mask, float("-inf"))
    ids, logprobs = rows(logits, uniforms, temperature)
    edges = np.concatenate([[0.0], reference_edges(logits, temperature)])
    expected = torch.log_softmax(logits.double() / temperature, -1)[ids]
    for u, token in zip(uniforms, ids.tolist(), strict=True):
        assert not mask[token]
        assert edges[token] - 1e-6 <= u <= edges[token + 1] + 1e-6
    assert torch.allclose(logprobs.double(), expected, rtol=0, atol=1e-5)
    assert (logprobs <= 1e-6).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("u", [0.0, ALMOST_ONE])
def test_the_ends_of_the_unit_interval(size: int, u: float) -> None:
    """u = 0 gives the first possible id, u just below 1 the last, even when the first and last
    ids of the vocabulary are impossible."""
    logits = random_logits(size, seed=3)
    logits[: size // 3] = float("-inf")
    if size > 2:
        logits[-(size // 3) :] = float("-inf")
    possible = torch.nonzero(logits.isfinite()).flatten()
    ids, logprobs = rows(logits, [u], 1.0)
    assert ids.item() == (possible[0] if u == 0.0 else possible[-1])
    assert logprobs.isfinite().all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("low", [float("-inf"), -1e30, -200.0])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_one_possible_id_has_log_probability_zero(size: int, low: float, temperature: float) -> None:
    for place in {0, size // 2, size - 1}:
        logits = torch.full((size,), low)
        logits[place] = 5.0
        ids, logprobs = rows(logits, [0.0, 0.5, ALMOST_ONE], temperature)
        assert ids.tolist() == [place] * 3
        assert logprobs.tolist() == [0.0] * 3


def test_greedy_takes_the_largest_and_is_certain() -> None:
    logits = torch.stack([random_logits(1000, seed) for seed in range(20)])
    ids, logprobs = draw(logits, torch.rand(20, dtype=torch.float64), torch.zeros(20))
    assert torch.equal(ids, logits.argmax(-1))
    assert logprobs.tolist() == [0.0] * 20


def test_rows_with_temperatures_of_their_own() -> None:
    """Mixed rows are drawn as each alone, bit for bit."""
    logits = torch.stack([random_logits(700, seed) for seed in range(24)])
    uniforms = torch.from_numpy(np.random.default_rng(0).random(24))
    temperatures = torch.tensor([0.0, 0.7, 1.0, 1.3] * 6)
    ids, logprobs = draw(logits, uniforms, temperatures)
    for n in range(24):
        one = slice(n, n + 1)
        alone = draw(logits[one], uniforms[one], temperatures[one])
        assert torch.equal(alone[0], ids[one])
        assert torch.equal(alone[1], logprobs[one])


@pytest.mark.parametrize("size", [49152, 1003])
def test_a_row_is_drawn_the_same_among_any_neighbours(size: int) -> None:
    logits = torch.stack([random_logits(size, seed) for seed in range(64)]).bfloat16()
    uniforms = torch.from_numpy(np.random.default_rng(0).random(64))
    temperatures = torch.full((64,), 0.9)
    ids, logprobs = draw(logits, uniforms, temperatures)
    for first, count in [(0, 1), (0, 8), (5, 16), (13, 3), (40, 24), (63, 1)]:
        some = slice(first, first + count)
        got = draw(logits[some], uniforms[some], temperatures[some])
        assert torch.equal(got[0], ids[some])
        assert torch.equal(got[1], logprobs[some])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("size", [5, 300])
def test_broken_logits_give_a_broken_log_probability(value: float, temperature: float, size: int) -> None:
    """The engine names it; here nothing may hide it, nor may an id be outside the vocabulary."""
    logits = random_logits(size, seed=0)
    logits[size // 2] = value
    ids, logprobs = rows(logits, [0.0, 0.4, ALMOST_ONE], temperature)
    assert logprobs.isnan().all()
    assert ((ids >= 0) & (ids < size)).all()
