"""Advantages and losses against formulas written down again, in NumPy and by hand."""

import itertools
import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from torl import config
from torl.algorithms import settings
from torl.algorithms.advantages import (
    ADVANTAGES,
    advantage_named,
    dr_grpo,
    each,
    grpo,
    maxrl,
    pass_at_k,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
)
from torl.algorithms.aggregation import AGGREGATIONS
from torl.algorithms.gae import explained_variance, gae, gae_by_turn, value_loss, whiten
from torl.algorithms.kl import KL
from torl.algorithms.losses import LOSSES, Tokens, loss_named
from torl.algorithms.off_policy import CORRECTIONS, ratios
from torl.credit import give_advantages
from torl.types import Group, Task, Trajectory

fields = config.Algorithm.model_fields
Array = NDArray[np.float64]

rewards = st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=16)
quick = hypothesis_settings(max_examples=60, deadline=None)


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


def test_the_recipe_knows_the_names_of_all() -> None:
    assert tuple(ADVANTAGES) == settings.ADVANTAGES
    assert tuple(LOSSES) == settings.LOSSES
    assert set(settings.ALONE) <= set(settings.ADVANTAGES)
    assert set(AGGREGATIONS) == set(get_args(fields["aggregation"].annotation))
    assert set(KL) == set(get_args(fields["kl"].annotation))
    assert {"none", *CORRECTIONS} == set(get_args(fields["off_policy"].annotation))
    assert loss_named("gspo") is LOSSES["gspo"]
    assert loss_named("torl.algorithms.losses:cispo") is LOSSES["cispo"]
    assert (
        advantage_named("torl.algorithms.advantages:grpo")([f64([1, 0])])[0].tolist()
        == grpo(f64([1, 0])).tolist()
    )


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


OF_ONE = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo, "maxrl": maxrl, "pass_at_k": pass_at_k}


@pytest.mark.parametrize("name", OF_ONE)
@quick
@given(rewards, st.floats(-10, 10), st.randoms())
def test_what_compares_within_a_group_ignores_shift_and_order_and_keeps_ranks(
    name: str, values: list[float], shift: float, random: Any
) -> None:
    values = [round(v, 3) for v in values]  # so that a shift does not make equal what differs
    function = OF_ONE[name]
    base = function(f64(values))
    scale = 1 + float(base.abs().max())
    if np.std(values) > 1e-2 or name != "grpo":
        assert function(f64(values) + shift).tolist() == pytest.approx(base.tolist(), abs=1e-6 * scale)
    order = list(range(len(values)))
    random.shuffle(order)
    assert function(f64(values)[order]).tolist() == pytest.approx(base[order].tolist(), abs=1e-9 * scale)
    assert abs(float(base.sum())) < 1e-9 * scale * len(values)
    for i, j in itertools.product(range(len(values)), repeat=2):
        if values[i] > values[j]:
            assert base[i] >= base[j] - 1e-9 * scale
    assert function(torch.full((5,), values[0], dtype=torch.float64)).tolist() == [0.0] * 5


@quick
@given(rewards)
def test_rloo_is_each_reward_less_the_mean_of_the_others(values: list[float]) -> None:
    wanted = [v - (sum(values) - v) / (len(values) - 1) for v in values]
    assert rloo(f64(values)).tolist() == pytest.approx(wanted, abs=1e-9)


@quick
@given(st.integers(1, 7), st.integers(1, 7))
def test_maxrl_of_successes_and_failures(right: int, wrong: int) -> None:
    """K successes among N: (N / K) (1 - K/N) for each, -1 for a failure; whatever the two rewards are."""
    for high, low in ((1.0, 0.0), (1.0, -1.0)):
        found = maxrl(f64([high] * right + [low] * wrong)).tolist()
        assert found == pytest.approx([wrong / right] * right + [-1.0] * wrong)


@quick
@given(st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=8), st.integers(1, 5))
def test_pass_at_k_counts_all_sets(values: list[float], k: int) -> None:
    taken = min(k, len(values) - 1)

    def wanted(i: int) -> float:
        others = [v for j, v in enumerate(values) if j != i]
        with_it = [max([values[i], *some]) for some in itertools.combinations(others, taken - 1)]
        without = [max(some) for some in itertools.combinations(others, taken)]
        return sum(with_it) / len(with_it) - sum(without) / len(without)

    found = pass_at_k(f64(values), k).tolist()
    assert found == pytest.approx([wanted(i) for i in range(len(values))], abs=1e-9)
    if k == 1:
        assert found == pytest.approx(rloo(f64(values)).tolist(), abs=1e-9)


group_sets = st.lists(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=5), min_size=1, max_size=4)


@quick
@given(group_sets)
def test_over_the_batch(groups: list[list[float]]) -> None:
    """Groups of unequal sizes, of one too."""
    flat = np.array([v for g in groups for v in g])
    found = [a for g in reinforce_pp([f64(g) for g in groups]) for a in g.tolist()]
    deviation = flat.std(ddof=1) if len(flat) > 1 else 0.0
    if len(flat) > 1 and deviation > 1e-3:
        np.testing.assert_allclose(found, (flat - flat.mean()) / (deviation + 1e-8), atol=1e-6)
    if len(set(flat)) == 1:
        assert found == [0.0] * len(flat)
    centred = np.array([v - np.mean(g) if len(set(g)) > 1 else 0.0 for g in groups for v in g])
    based = [a for g in reinforce_pp_baseline([f64(g) for g in groups]) for a in g.tolist()]
    if len(centred) > 1 and centred.std(ddof=1) > 1e-3:
        np.testing.assert_allclose(based, centred / (centred.std(ddof=1) + 1e-8), atol=1e-6)


def test_parts_are_normalised_apart_and_summed_by_weight() -> None:
    task = Task("t", "?", "1")
    parts = [{"a": 1.0, "b/x": 100.0}, {"a": 0.0, "b/x": 300.0}]
    members = [Trajectory(task, n, [1], reward=0.0, reward_parts=p) for n, p in enumerate(parts)]
    give_advantages([Group(task, members)], each(grpo), {"a": 2.0, "b": 1.0})
    half = math.sqrt(0.5)
    assert [t.advantage for t in members] == pytest.approx([2 * half - half, half - 2 * half], rel=1e-4)
    members[0].reward = 1.0
    give_advantages([Group(task, members)], each(dr_grpo))
    assert [t.advantage for t in members] == [0.5, -0.5]


# GAE


@quick
@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_gae_is_the_weighted_sum_of_its_errors(
    steps: list[tuple[float, float]], gamma: float, gae_lambda: float
) -> None:
    r, v = [s[0] for s in steps], [*(s[1] for s in steps), 0.0]
    deltas = [r[t] + gamma * v[t + 1] - v[t] for t in range(len(r))]
    wanted = [
        sum((gamma * gae_lambda) ** (k - t) * deltas[k] for k in range(t, len(r))) for t in range(len(r))
    ]
    advantages, returns = gae(f64(r), f64(v[:-1]), gamma, gae_lambda)
    assert advantages.tolist() == pytest.approx(wanted, abs=1e-12)
    assert returns.tolist() == pytest.approx([w + x for w, x in zip(wanted, v, strict=False)], abs=1e-12)
    # each token a turn of its own
    numbers = torch.arange(len(r))
    by_turn = gae_by_turn(f64(r), f64(v[:-1]), numbers, gamma, gae_lambda)
    assert by_turn[0].tolist() == pytest.approx(wanted, abs=1e-12)


def test_gae_by_hand() -> None:
    advantages, returns = gae(f64([0, 0, 1]), f64([0.5, 0.5, 0.5]), gamma=1.0, gae_lambda=1.0)
    assert advantages.tolist() == [0.5] * 3
    assert returns.tolist() == [1.0] * 3
    advantages, _ = gae(f64([0, 0, 1]), f64([0.5, 0.25, 0.5]), gamma=1.0, gae_lambda=0.0)
    assert advantages.tolist() == [-0.25, 0.25, 0.5]
    turns = torch.tensor([0, 0, 0, 2, 2])  # numbers may have gaps: an observation's turn trains nothing
    advantages, returns = gae_by_turn(
        f64([0, 0, 0, 0, 1]), f64([0.2, 9, 9, 0.6, 9]), turns, gamma=0.5, gae_lambda=1.0
    )
    assert advantages.tolist() == pytest.approx([0.3] * 3 + [0.4] * 2)  # 0.5 * 1 - 0.2, 1 - 0.6
    assert returns.tolist() == pytest.approx([0.5] * 3 + [1.0] * 2)


def test_whitened_advantages() -> None:
    found = torch.cat(whiten([f64([1, 2]), f64([6])])).tolist()
    assert sum(found) == pytest.approx(0)
    assert np.std(found, ddof=1) == pytest.approx(1)
    assert torch.cat(whiten([f64([2, 2]), f64([2])])).tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("value", "old", "ret", "clip", "loss"),
    [
        (1.0, 0.0, 3.0, 0.0, 2.0),
        (1.0, 0.0, 3.0, 0.2, 3.92),
        (1.0, 0.9, 3.0, 0.2, 2.0),
        (2.0, 0.0, 0.0, 0.2, 2.0),
    ],
)
def test_value_loss_by_hand(value: float, old: float, ret: float, clip: float, loss: float) -> None:
    assert value_loss(f64([value]), f64([old]), f64([ret]), clip).tolist() == pytest.approx([loss])


def test_explained_variance() -> None:
    returns = f64([0, 1, 2])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(f64([7, 7, 7]), returns) == pytest.approx(0)
    assert math.isnan(explained_variance(returns, f64([1, 1, 1])))


# Policy losses


def tokens_of(
    logprobs: Any, old: Any, advantages: Any, trajectory: list[int] | None = None
) -> tuple[Tokens, torch.Tensor]:
    new = f64(logprobs).requires_grad_()
    whose = torch.tensor(trajectory if trajectory is not None else [0] * len(new))
    return Tokens(new, f64(old), f64(advantages), whose), new


def slopes(name: str, tokens: Tokens, new: torch.Tensor, **fields: Any) -> tuple[Any, list[float]]:
    """The loss of each token, and the slope of their sum."""
    found = LOSSES[name](tokens, config.Algorithm(**fields))
    (slope,) = torch.autograd.grad(found.loss.sum(), new)
    return found, slope.tolist()


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
def test_ppo_by_hand(ratio: float, advantage: float, loss: float, slope: float, clipped: bool) -> None:
    """slope: d loss / d logprob = -A r where it is free, exactly 0 where it is clipped."""
    found, (at,) = slopes("ppo", *tokens_of([math.log(ratio) - 3.0], [-3.0], [advantage]), clip_high=0.28)
    assert found.loss.item() == pytest.approx(loss, abs=1e-12)
    assert at == (0.0 if clipped else pytest.approx(slope, abs=1e-12))
    assert found.clipped.tolist() == [clipped]


@pytest.mark.parametrize(("ratio", "loss", "slope"), [(2.0, 2.0, 2.0), (9.0, 3.0, 0.0), (0.5, 0.8, 0.0)])
def test_dual_clip_bounds_what_a_bad_token_costs(ratio: float, loss: float, slope: float) -> None:
    found, (at,) = slopes("ppo", *tokens_of([math.log(ratio)], [0.0], [-1.0]), dual_clip=3.0)
    assert (found.loss.item(), at) == (pytest.approx(loss), pytest.approx(slope))
    assert found.clipped.item() == (slope == 0)
    free, (up,) = slopes("ppo", *tokens_of([math.log(0.5)], [0.0], [1.0]), dual_clip=3.0)
    assert (free.loss.item(), up) == (pytest.approx(-0.5), pytest.approx(-0.5))  # not where A is positive


def test_gspo_by_hand() -> None:
    """Two trajectories, log ratios (0.1, 0.3) and (0.5): s is exp(0.2) and exp(0.5)."""
    tokens, new = tokens_of([0.1, 0.3, 0.5], [0, 0, 0], [1, 1, 1], [0, 0, 1])
    found, at = slopes("gspo", tokens, new, clip_high=0.3, loss="gspo", aggregation="sequence_mean")
    assert found.loss.tolist() == pytest.approx([-math.exp(0.2)] * 2 + [-1.3])
    assert at == pytest.approx(
        [-math.exp(0.2)] * 2 + [0.0]
    )  # each token's ratio moves both of two losses by half
    assert found.clipped.tolist() == [False, False, True]


def test_cispo_by_hand() -> None:
    """The slope stays beyond the clip, where ppo's is 0."""
    tokens, new = tokens_of([math.log(2.0), math.log(0.5), 0.0], [0, 0, 0], [1, -1, 2])
    found, at = slopes("cispo", tokens, new, clip_low=0.2, clip_high=0.28)
    assert at == pytest.approx([-1.28, 0.8, -2.0])
    assert found.clipped.tolist() == [True, True, False]
    assert slopes("reinforce", tokens, new)[1] == pytest.approx([-1.0, 1.0, -2.0])


advantages_drawn = st.floats(-3, 3).map(lambda a: round(a, 6))  # a denormal would round to 0
tokens = st.lists(st.tuples(st.floats(-8, 0), st.floats(-8, 0), advantages_drawn), min_size=1, max_size=20)


@quick
@given(tokens, st.floats(0, 0.9), st.floats(0, 3))
def test_ppo_equals_the_reference(rows: list[tuple[float, float, float]], low: float, high: float) -> None:
    new, old, advantages = (np.array(column) for column in zip(*rows, strict=True))
    found, slope = slopes("ppo", *tokens_of(new, old, advantages), clip_low=low, clip_high=high)
    wanted = ppo_reference(new, old, advantages, low, high)
    np.testing.assert_allclose(found.loss.detach().numpy(), wanted, rtol=1e-12, atol=1e-12)
    ratio = np.exp(new - old)
    acts = ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))
    # exp may differ by one unit in the last place between NumPy and torch: leave the edge out
    edge = (np.abs(ratio - (1 + high)) < 1e-12) | (np.abs(ratio - (1 - low)) < 1e-12)
    np.testing.assert_allclose(
        np.array(slope)[~edge], np.where(acts, 0.0, -ratio * advantages)[~edge], rtol=1e-12
    )
    assert (found.clipped.numpy() == acts)[~edge & (advantages != 0)].all()


@quick
@given(tokens, st.randoms())
def test_gspo_equals_the_reference(rows: list[tuple[float, float, float]], random: Any) -> None:
    new, old, _ = (np.array(column) for column in zip(*rows, strict=True))
    whose = sorted(random.randrange(3) for _ in new)
    advantage = {t: random.choice([-2.0, -0.5, 0.5, 2.0]) for t in range(3)}
    given_tokens = tokens_of(new, old, [advantage[t] for t in whose], whose)
    found, slope = slopes("gspo", *given_tokens, loss="gspo", aggregation="sequence_mean")
    for t in set(whose):
        rows_of = [i for i, w in enumerate(whose) if w == t]
        ratio = math.exp(sum(new[i] - old[i] for i in rows_of) / len(rows_of))
        a = advantage[t]
        wanted = -min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
        acts = (a > 0 and ratio > 1.2) or (a < 0 and ratio < 0.8)
        for i in rows_of:
            assert found.loss[i].item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)
            assert slope[i] == pytest.approx(0.0 if acts else -ratio * a, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_the_gradient_is_that_of_the_log_probability(name: str) -> None:
    """Ratio 1 is never clipped, not even with widths of 0."""
    for width in (0.0, 0.2):
        advantages = [1.0, -2.0, -2.0] if name == "gspo" else [1.0, -2.0, 0.5]
        tokens, new = tokens_of([-0.5, -2.0, -7.0], [-0.5, -2.0, -7.0], advantages, [0, 1, 1])
        found, at = slopes(name, tokens, new, clip_low=width, clip_high=width)
        assert at == pytest.approx([-a for a in advantages])
        assert not found.clipped.any()
        none, _ = tokens_of([], [], [], [])
        assert LOSSES[name](none, config.Algorithm()).loss.sum().item() == 0.0


# Aggregation, divergence, corrections


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("token_mean", [1 / 6] * 2), ("sequence_mean", [1 / 4, 1 / 8]), ("constant", [1 / 30] * 2)],
)
def test_what_a_token_counts(name: str, wanted: list[float]) -> None:
    """Trajectories of 2, 4 and 0 tokens, at most 15 each."""
    weights, denominator = AGGREGATIONS[name](f64([2, 4, 0]), 15)
    assert (weights / denominator)[:2].tolist() == pytest.approx(wanted)


@quick
@given(st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0)), min_size=1, max_size=6))
def test_the_estimates_of_the_divergence(pairs: list[tuple[float, float]]) -> None:
    new, ref = f64([p[0] for p in pairs]).requires_grad_(), f64([p[1] for p in pairs])
    d = np.array([p[0] - p[1] for p in pairs])
    wanted = {"k1": (d, d * 0 + 1), "k2": (d**2 / 2, d), "k3": (np.exp(-d) - 1 + d, 1 - np.exp(-d))}
    for name, (value, slope) in wanted.items():
        found = KL[name](new, ref)
        np.testing.assert_allclose(found.detach().numpy(), value, atol=1e-9)
        np.testing.assert_allclose(torch.autograd.grad(found.sum(), new)[0].numpy(), slope, atol=1e-9)


def test_the_estimates_of_the_divergence_in_the_mean() -> None:
    """Over all ids of a small vocabulary, weighed by the policy: k1 and k3 have the divergence's value, k2
    its gradient, k1 in a loss none, and k3 that of the divergence the other way round."""
    logits, ref = f64([0.3, -1.0, 0.8]).requires_grad_(), torch.log_softmax(f64([0.0, 0.5, -0.2]), 0)
    new = torch.log_softmax(logits, 0)
    policy = new.detach().exp()
    exact = (new.exp() * (new - ref)).sum()
    reverse = (ref.exp() * (ref - new)).sum()

    def slope(value: torch.Tensor) -> list[float]:
        return torch.autograd.grad(value, logits, retain_graph=True)[0].tolist()  # type: ignore[no-any-return]

    for name in ("k1", "k3"):
        value = (policy * KL[name](new.detach(), ref)).sum()
        assert value.item() == pytest.approx(exact.item())
    assert slope((policy * KL["k2"](new, ref)).sum()) == pytest.approx(slope(exact))
    assert slope((policy * KL["k1"](new, ref)).sum()) == pytest.approx([0, 0, 0], abs=1e-12)
    assert slope((policy * KL["k3"](new, ref)).sum()) == pytest.approx(slope(reverse))


def test_corrections_by_hand() -> None:
    old, sampled, whose = f64([-1.0, -1.0, -2.0]), f64([-1.5, -2.5, -1.0]), torch.tensor([0, 0, 1])
    token = ratios(old, sampled, whose, "token")
    assert token.tolist() == pytest.approx([math.exp(0.5), math.exp(1.5), math.exp(-1)])
    whole = ratios(old, sampled, whose, "sequence")
    assert whole.tolist() == pytest.approx([math.exp(2), math.exp(2), math.exp(-1)])
    assert CORRECTIONS["truncate"](token, 2.0).tolist() == pytest.approx([math.exp(0.5), 2.0, math.exp(-1)])
    assert CORRECTIONS["reject"](token, 2.0).tolist() == [1.0, 0.0, 0.0]
    assert ratios(old[:0], sampled[:0], whose[:0], "sequence").tolist() == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dual_clip": 0.9}, "above 1"),
        ({"loss": "gspo", "off_policy": "truncate"}, "one ratio a trajectory"),
        ({"kl": "k1", "kl_coef": 0.1}, "the mean of its gradient is 0"),
        ({"off_policy": "reject", "old_logprobs": "sampler", "epochs": 2}, "makes them the same"),
        ({"advantage": "gae", "per_part": True}, "critic of the whole reward"),
        ({"loss": "gpso"}, "Did you mean gspo"),
    ],
)
def test_impossible_combinations(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        config.Algorithm(**changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clip_high": 0.28}, "no effect"),
        ({"loss": "gspo", "epochs": 2, "aggregation": "sequence_mean"}, "never acts"),
        ({"loss": "gspo"}, "sequence_mean"),
        ({"loss": "reinforce", "mini_batches": 2}, "not corrected"),
    ],
)
def test_dubious_combinations(changes: dict[str, Any], why: str) -> None:
    (warning,) = config.Algorithm(**changes).warnings()
    assert why in warning
    assert config.Algorithm().warnings() == []
