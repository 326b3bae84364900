"""Advantages and token losses against formulas written down again, in NumPy and by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from torl import config
from torl.algorithms.advantages import ADVANTAGES, advantage_named, dr_grpo, grpo
from torl.algorithms.losses import ppo_clip

Array = NDArray[np.float64]

rewards = st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=16)
quick = settings(max_examples=60, deadline=None)


def f64(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def grpo_reference(rewards: Array, normalise: bool, eps: float = 1e-6) -> Array:
    centred = rewards - rewards.sum() / len(rewards)
    deviation = math.sqrt((centred**2).sum() / (len(rewards) - 1))
    return centred / (deviation + eps) if normalise else centred


def ppo_reference(new: Array, old: Array, advantages: Array, low: float, high: float) -> Array:
    out = np.empty(len(new))
    for i, (n, o, a) in enumerate(zip(new, old, advantages, strict=True)):
        ratio = math.exp(n - o)
        out[i] = -min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a)
    return out


# Advantages


@pytest.mark.parametrize(
    ("given_rewards", "expected"),
    [
        ([1, 0], [math.sqrt(0.5), -math.sqrt(0.5)]),  # deviation sqrt(1/2)
        ([1, -1, -1, -1], [1.5, -0.5, -0.5, -0.5]),  # mean -1/2, deviation 1
        ([1, 1, -1, -1], [math.sqrt(0.75), math.sqrt(0.75), -math.sqrt(0.75), -math.sqrt(0.75)]),
        ([0, 1, 2], [-1, 0, 1]),
    ],
)
def test_grpo_by_hand(given_rewards: list[float], expected: list[float]) -> None:
    assert grpo(f64(given_rewards), eps=0.0).tolist() == pytest.approx(expected, abs=1e-15)
    assert grpo(f64(given_rewards)).tolist() == pytest.approx(expected, rel=3e-6, abs=1e-15)


def test_grpo_without_deviation_by_hand() -> None:
    assert dr_grpo(f64([1, -1, -1, -1])).tolist() == [1.5, -0.5, -0.5, -0.5]


@quick
@given(rewards, st.booleans())
def test_grpo_equals_the_reference(values: list[float], normalise: bool) -> None:
    wanted = grpo_reference(np.array(values), normalise)
    np.testing.assert_allclose(
        (grpo if normalise else dr_grpo)(f64(values)).numpy(), wanted, rtol=1e-9, atol=1e-9
    )


@quick
@given(st.floats(-1e30, 1e30), st.integers(0, 20), st.booleans())
def test_equal_rewards_carry_no_signal_at_all(reward: float, size: int, normalise: bool) -> None:
    for dtype in (torch.float32, torch.float64):
        function = grpo if normalise else dr_grpo
        advantages = function(torch.full((size,), reward, dtype=dtype))
        assert advantages.tolist() == [0.0] * size


def test_the_recipe_knows_the_names_of_all_advantages() -> None:
    assert tuple(ADVANTAGES) == config.ADVANTAGES
    assert advantage_named("dr_grpo") is dr_grpo
    assert advantage_named("torl.algorithms.advantages:grpo") is grpo


def test_a_group_of_one_or_none_has_nothing_to_compare_with() -> None:
    assert grpo(f64([3.0])).tolist() == [0.0]
    assert grpo(f64([])).tolist() == []


@quick
@given(rewards, st.floats(-100, 100), st.floats(0.5, 100), st.randoms())
def test_grpo_ignores_shift_scale_and_order(
    values: list[float], shift: float, scale: float, random: Any
) -> None:
    spread = float(np.std(values))
    if spread < 1e-3:  # there eps, or rounding, decides
        return
    base = grpo(f64(values)).numpy()
    np.testing.assert_allclose(grpo(f64(values) + shift).numpy(), base, atol=1e-8)
    np.testing.assert_allclose(grpo(f64(values) * scale, eps=1e-6 * scale).numpy(), base, atol=1e-8)
    np.testing.assert_allclose(dr_grpo(f64(values) * scale).numpy(), dr_grpo(f64(values)) * scale)
    np.testing.assert_allclose(grpo(-f64(values)).numpy(), -base, atol=1e-8)
    order = list(range(len(values)))
    random.shuffle(order)
    np.testing.assert_allclose(grpo(f64(values)[order]).numpy(), base[order], atol=1e-8)


@quick
@given(rewards)
def test_grpo_keeps_the_order_and_sums_to_zero(values: list[float]) -> None:
    advantages = grpo(f64(values))
    assert abs(float(advantages.sum())) < 1e-6
    for i in range(len(values)):
        for j in range(len(values)):
            if values[i] > values[j]:
                assert advantages[i] >= advantages[j]
    assert float(advantages.abs().max()) <= (len(values) - 1) / math.sqrt(len(values)) + 1e-9


# Token losses


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),
        (1.1, 2.0, -2.2, -2.2, False),
        (1.5, 2.0, -2.56, 0.0, True),  # above 1 + 0.28, and wanted up: enough
        (0.5, 2.0, -1.0, -1.0, False),  # below, but wanted up: free
        (0.5, -2.0, 1.6, 0.0, True),  # below 1 - 0.2, and wanted down: enough
        (1.5, -2.0, 3.0, 3.0, False),  # above, but wanted down: free
        (0.75, -1.0, 0.8, 0.0, True),  # 1 - clip_low, not 1 - clip_high
        (1.25, 1.0, -1.25, -1.25, False),  # 1 + clip_high, not 1 + clip_low
        (9.0, 0.0, 0.0, 0.0, False),
    ],
)
def test_ppo_clip_by_hand(ratio: float, advantage: float, loss: float, slope: float, clipped: bool) -> None:
    """slope: d loss / d logprob = -A r where it is free, exactly 0 where it is clipped."""
    logprobs = f64([math.log(ratio) - 3.0]).requires_grad_()
    found = ppo_clip(logprobs, f64([-3.0]), f64([advantage]), clip_low=0.2, clip_high=0.28)
    found.loss.sum().backward()
    assert logprobs.grad is not None
    assert found.loss.item() == pytest.approx(loss, abs=1e-12)
    assert logprobs.grad.item() == (0.0 if clipped else pytest.approx(slope, abs=1e-12))
    assert found.clipped.tolist() == [clipped]


advantages_drawn = st.floats(-3, 3).map(lambda a: round(a, 6))  # a denormal would round to 0
tokens = st.lists(st.tuples(st.floats(-8, 0), st.floats(-8, 0), advantages_drawn), min_size=1, max_size=20)


@quick
@given(tokens, st.floats(0, 0.9), st.floats(0, 3))
def test_ppo_clip_equals_the_reference(
    rows: list[tuple[float, float, float]], low: float, high: float
) -> None:
    new, old, advantages = (np.array(column) for column in zip(*rows, strict=True))
    logprobs = f64(new).requires_grad_()
    found = ppo_clip(logprobs, f64(old), f64(advantages), low, high)
    wanted = ppo_reference(new, old, advantages, low, high)
    np.testing.assert_allclose(found.loss.detach().numpy(), wanted, rtol=1e-12, atol=1e-12)
    found.loss.sum().backward()
    assert logprobs.grad is not None
    ratio = np.exp(new - old)
    acts = ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))
    # exp may differ by one unit in the last place between NumPy and torch: leave the edge out
    edge = (np.abs(ratio - (1 + high)) < 1e-12) | (np.abs(ratio - (1 - low)) < 1e-12)
    np.testing.assert_allclose(
        logprobs.grad.numpy()[~edge], np.where(acts, 0.0, -ratio * advantages)[~edge], rtol=1e-12
    )
    assert (found.clipped.numpy() == acts)[~edge & (advantages != 0)].all()


def test_on_policy_the_gradient_is_that_of_the_log_probability() -> None:
    """Ratio 1 is never clipped, not even with widths of 0."""
    for width in (0.0, 0.2):
        logprobs = f64([-0.5, -2.0, -7.0]).requires_grad_()
        found = ppo_clip(logprobs, logprobs.detach(), f64([1.0, -2.0, 0.5]), width, width)
        found.loss.sum().backward()
        assert logprobs.grad is not None
        assert logprobs.grad.tolist() == [-1.0, 2.0, -0.5]
        assert not found.clipped.any()


def test_no_tokens_no_loss() -> None:
    empty = f64([])
    assert ppo_clip(empty, empty, empty, 0.2, 0.2).loss.sum().item() == 0.0
