"""The compiled kernels against plain torch in float64: values, gradients, independence."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torl.model import native
from torl.model.native import Native, kernels_for
from torl.model.plain import Plain
from torl.model.rows import BLOCK, Rows
from torl.model.tree import Tree

CPU = torch.device("cpu")
SHAPES = [(6, 2, 8), (9, 3, 64), (12, 2, 128), (4, 4, 12), (5, 1, 80)]  # heads, key heads, head size
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}

pytestmark = pytest.mark.skipif(
    not isinstance(kernels_for(6, 2, 8, torch.float32, CPU), Native), reason="no C compiler"
)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param  # type: ignore[no-any-return]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    assert found.shape == wanted.shape
    found, wanted = found.detach(), wanted.detach()
    scale = float(wanted.abs().max()) + 1e-9
    assert float((found.double() - wanted.double()).abs().max()) <= factor * TOLERANCE[dtype] * scale


def compare(
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: list[Tensor],
    dtype: torch.dtype,
    shape: tuple[int, int, int] = (6, 2, 8),
) -> None:
    """function(kernels, *inputs): compiled in ``dtype`` and plain in float64, with their gradients."""
    compiled = kernels_for(*shape, dtype, CPU)
    assert isinstance(compiled, Native)
    narrow = [x.to(dtype) for x in inputs]
    results = []
    for kernels, given in ((compiled, narrow), (Plain(*shape), [x.double() for x in narrow])):
        leaves = [x.detach().clone().requires_grad_() for x in given]
        outputs = function(kernels, *[x * 1 for x in leaves])  # none is a leaf: some are changed in place
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        total = sum((o * draw(*o.shape, seed=n).to(o.dtype)).sum() for n, o in enumerate(outputs))
        results.append((outputs, torch.autograd.grad(total, leaves)))
        with torch.no_grad():  # the form that works in place
            again = function(kernels, *[x.clone() for x in given])
            again = again if isinstance(again, tuple) else (again,)
        for a, b in zip(outputs, again, strict=True):
            assert torch.equal(a, b)
    (found, slopes), (wanted, wanted_slopes) = results
    for a, b in zip(found, wanted, strict=True):
        close(a, b, dtype)
    for a, b in zip(slopes, wanted_slopes, strict=True):
        close(a, b, dtype, 3)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_add_norm(dtype: torch.dtype, rows: int) -> None:
    hidden, delta, weight = draw(rows, 50), draw(rows, 50, seed=1), draw(50, seed=2)
    compare(lambda k, h, d, w: k.add_norm(h, d, w, 1e-5), [hidden, delta, weight], dtype)
    compare(lambda k, h, w: k.add_norm(h, None, w, 1e-5), [hidden, weight], dtype)
    compare(lambda k, h, w: k.add_norm(h, None, w, 1e-5)[1], [hidden, weight], dtype)


def test_silu_mul(dtype: torch.dtype) -> None:
    x = draw(7, 2 * 33) * 8
    x[0, :4] = torch.tensor([-200.0, 200.0, 0.0, -88.0])
    compare(lambda k, x: k.silu_mul(x), [x], dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rotate(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    heads, keys, dim = shape
    half = draw(30, dim // 2, seed=1)
    cos, sin = (torch.cat([x, x], -1).to(dtype) for x in (half.cos(), half.sin()))
    positions = torch.tensor([0, 29, 3, 3])

    def rotate(kernels: Plain, qkv: Tensor) -> Tensor:
        return kernels.rotate(qkv, cos.to(qkv.dtype), sin.to(qkv.dtype), positions)

    compare(rotate, [draw(4, (heads + 2 * keys) * dim)], dtype, shape)


def random_tree(seed: int) -> Tree:
    source = random.Random(seed)
    sizes = [source.choice([1, 2, 5, 63, 64, 65, 130, 0]) for _ in range(6)]
    sizes[0] = max(1, sizes[0])
    return Tree(sizes, [-1, *(source.randrange(-1, n) for n in range(1, 6))])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_attend_tree(dtype: torch.dtype, shape: tuple[int, int, int], seed: int) -> None:
    heads, keys, dim = shape
    tree = random_tree(seed)
    qkv = draw(sum(tree.sizes), (heads + 2 * keys) * dim, seed=seed)
    compare(lambda k, x: k.attend_tree(x, tree), [qkv], dtype, shape)


def cached(kernels: Plain, qkv: Tensor, rows: Rows, blocks: int) -> Tensor:
    heads, keys, dim = kernels.heads, kernels.key_heads, kernels.head_dim
    store = (
        torch.zeros(blocks, keys, dim, BLOCK, dtype=qkv.dtype),
        torch.zeros(blocks, keys, BLOCK, dim, dtype=qkv.dtype),
    )
    assert qkv.shape[1] == (heads + 2 * keys) * dim
    kernels.store(qkv, *store, rows)
    return kernels.attend(qkv, *store, rows)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_over_the_cache(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    """Three sequences in scattered blocks, fed whole; each row is also the same when it is fed alone."""
    heads, keys, dim = shape
    lengths, blocks = [1, 64, 200], 9
    tables = torch.tensor([[3, 0, 0, 0], [7, 1, 0, 0], [2, 8, 4, 5]], dtype=torch.int32)
    slots = torch.arange(3, dtype=torch.int32).repeat_interleave(torch.tensor(lengths))
    positions = torch.cat([torch.arange(n) for n in lengths])
    rows = Rows(slots, positions, tables)
    qkv = draw(sum(lengths), (heads + 2 * keys) * dim).to(dtype)
    compiled = kernels_for(*shape, dtype, CPU)
    found = cached(compiled, qkv, rows, blocks)
    wanted = Plain(*shape).attend_tree(qkv.double(), Tree(lengths, [-1, -1, -1]))
    close(found, wanted, dtype)
    close(cached(Plain(*shape), qkv, rows, blocks), wanted, dtype, 2)
    store = (
        torch.zeros(blocks, keys, dim, BLOCK, dtype=dtype),
        torch.zeros(blocks, keys, BLOCK, dim, dtype=dtype),
    )
    for n in random.Random(0).sample(range(len(qkv)), len(qkv)):
        compiled.store(qkv[n : n + 1], *store, Rows(slots[n : n + 1], positions[n : n + 1], tables))
    for n in (0, 1, 64, 65, 130, 264):
        one = Rows(slots[n : n + 1], positions[n : n + 1], tables)
        assert torch.equal(compiled.attend(qkv[n : n + 1], *store, one)[0], found[n])


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_logprobs_and_their_slopes(dtype: torch.dtype, temperature: float) -> None:
    compiled, plain = kernels_for(6, 2, 8, dtype, CPU), Plain(6, 2, 8)
    logits = (draw(5, 700) * 4).to(dtype)
    logits[1, 3:] = float("-inf")
    targets = torch.tensor([0, 2, 699, 5, 300])
    found = compiled.logprobs(logits, targets, temperature)
    wanted = plain.logprobs(logits.double(), targets, temperature)
    for a, b in zip(found, wanted, strict=True):
        close(a, b, torch.float32)
    slope = draw(5, seed=3)
    for spread in (None, draw(5, seed=4)):
        slim = spread.float() if spread is not None else None
        given = (found[2], slope.float(), found[1], slim)
        changes = compiled.logprob_slopes(logits.clone(), targets, temperature, *given)
        exact = (wanted[2], slope, wanted[1], spread)
        close(changes, plain.logprob_slopes(logits.double(), targets, temperature, *exact), dtype)


def test_draws_are_those_of_plain_torch(dtype: torch.dtype) -> None:
    compiled, plain = kernels_for(6, 2, 8, dtype, CPU), Plain(6, 2, 8)
    logits = (draw(400, 1000) * 3).to(dtype)
    uniforms = torch.rand(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    temperatures = torch.tensor([0.0, 0.7, 1.0, 2.0]).repeat(100)
    ids, logprobs = compiled.draw(logits, uniforms, temperatures)
    wanted_ids, wanted_logprobs = plain.draw(logits, uniforms, temperatures)
    assert int((ids != wanted_ids).sum()) <= 1  # u fell on an edge between two ids
    same = ids == wanted_ids
    torch.testing.assert_close(logprobs[same], wanted_logprobs[same], rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_draw_from_broken_logits_says_so(dtype: torch.dtype, value: float) -> None:
    logits = draw(3, 500).to(dtype)
    logits[1, 77] = value
    _, logprobs = kernels_for(6, 2, 8, dtype, CPU).draw(
        logits, torch.full((3,), 0.5, dtype=torch.float64), torch.tensor([1.0, 1.0, 0.0])
    )
    assert logprobs.isfinite().tolist() == [True, False, True]


def test_sums_do_not_depend_on_threads(dtype: torch.dtype) -> None:
    tree, kernels = random_tree(1), kernels_for(9, 3, 64, dtype, CPU)
    qkv = draw(sum(tree.sizes), 15 * 64).to(dtype)
    weight, hidden = draw(64, seed=1).to(dtype), draw(300, 64).to(dtype)

    def slopes() -> list[Tensor]:
        x, w = qkv.clone().requires_grad_(), weight.clone().requires_grad_()
        a, b = kernels.attend_tree(x, tree), kernels.add_norm(hidden, None, w, 1e-5)[1]
        return [a.detach(), *torch.autograd.grad(a.square().sum() + b.square().sum(), (x, w))]

    threads = torch.get_num_threads()
    try:
        results = []
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append(slopes())
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("compiler", ["/nonexistent/cc", "false"])
def test_without_a_working_compiler_plain_torch_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("TORL_CACHE", str(tmp_path))
    native._library.cache_clear()
    try:
        assert type(kernels_for(6, 2, 8, torch.float32, CPU)) is Plain
    finally:
        native._library.cache_clear()


def test_what_is_compiled_once_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORL_CACHE", str(tmp_path))
    native._library.cache_clear()
    kernels_for(6, 2, 8, torch.float32, CPU)
    (made,) = (tmp_path / "kernels").iterdir()
    native._library.cache_clear()
    monkeypatch.setattr(native, "_build", lambda *_: pytest.fail("compiled again"))
    assert isinstance(kernels_for(6, 2, 8, torch.float32, CPU), Native)
    assert made.exists()
    native._library.cache_clear()


def test_other_kinds_of_tensors_take_plain_torch() -> None:
    for dtype, device in ((torch.float64, CPU), (torch.float32, torch.device("meta"))):
        kernels: Any = kernels_for(6, 2, 8, dtype, device)
        assert type(kernels) is Plain
