"""How fast calls are on this machine: per tier, beside fresh interpreters."""

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import get_args

from torl.errors import UserError
from torl.sandbox.box import Sandbox
from torl.sandbox.health import quantile
from torl.sandbox.types import Limits, Tier

SNIPPETS = {
    "trivial": "print(1 + 1)",
    "numpy": "import numpy as np\na = np.random.rand(50, 50)\nprint(np.linalg.inv(a).shape)",
    "sympy": "from sympy import *\nx = symbols('x')\nprint(solve(x**2 - 5*x + 6, x))",
}
EXPECTED = {"trivial": "2", "numpy": "(50, 50)", "sympy": "[2, 3]"}
TIERS: tuple[Tier, ...] = get_args(Tier)
FORK = "fork"  # what the tier "unsafe" is called here: the same zygote without layers

Call = Callable[[str], Awaitable[str]]
"""Runs a snippet, returns what it printed."""


@dataclass(frozen=True)
class Row:
    tier: str
    snippet: str
    in_flight: int  # calls at once
    p50_ms: float  # from the call to its result, as the caller sees it
    p99_ms: float
    calls_per_s: float


async def measure(
    *, seconds: float, in_flight: Sequence[int], tiers: Sequence[str] = (), python: str = sys.executable
) -> AsyncIterator[Row]:
    """Rows as they are measured, each for about ``seconds``. Raises UserError when a snippet does
    not print what it must, or when none of ``tiers`` (all: none given) can be had here."""
    wanted = set(tiers)
    backends = _backends(python, max(in_flight))
    if unknown := wanted - {name for name, _ in backends}:
        choices = ", ".join(name for name, _ in backends)
        raise UserError(f"bench: there is no {', '.join(sorted(unknown))}; the choices are {choices}")
    for name, opened in backends:
        if wanted and name not in wanted:
            continue
        try:
            async with opened() as call:
                for snippet in SNIPPETS:
                    for calls in in_flight:
                        yield await _row(name, snippet, calls, call, seconds)
        except UserError:
            if wanted:
                raise
            continue  # this tier cannot be had here


def _backends(python: str, workers: int) -> list[tuple[str, Callable[[], "Opened"]]]:
    found: list[tuple[str, Callable[[], Opened]]] = []
    for tier in TIERS:
        found.append((FORK if tier == "unsafe" else tier, lambda t=tier: _zygotes(python, t, workers)))  # type: ignore[misc]
    found.append(("fresh", lambda: _fresh([python, "-I"])))
    if bwrap := shutil.which("bwrap"):
        jail = [bwrap, "--ro-bind", "/", "/", "--unshare-all", "--die-with-parent", "--new-session"]
        found.append(("bwrap", lambda: _fresh([*jail, python, "-I"])))
    return found


Opened = contextlib.AbstractAsyncContextManager[Call]


@contextlib.asynccontextmanager
async def _zygotes(python: str, tier: Tier, workers: int) -> AsyncIterator[Call]:
    async with Sandbox(Limits(workers=workers), python=python, tier=tier) as box:
        await box.start()

        async def call(code: str) -> str:
            result = await box.run(code)
            return result.stdout if result.status == "ok" else f"{result.status}: {result.stderr}"

        yield call


@contextlib.asynccontextmanager
async def _fresh(command: list[str]) -> AsyncIterator[Call]:
    async def call(code: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *command,
            "-c",
            code,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        out, _ = await process.communicate()
        return out.decode()

    yield call


async def _row(tier: str, snippet: str, in_flight: int, call: Call, seconds: float) -> Row:
    code, expected = SNIPPETS[snippet], EXPECTED[snippet]
    printed = await call(code)
    if printed.strip() != expected:
        raise UserError(f"bench: tier {tier} printed {printed.strip()[-300:]!r} for the {snippet} snippet")
    times: list[float] = []
    started = time.perf_counter()

    async def work() -> None:
        while time.perf_counter() - started < seconds:
            begun = time.perf_counter()
            await call(code)
            times.append(time.perf_counter() - begun)

    await asyncio.gather(*(work() for _ in range(in_flight)))
    elapsed = time.perf_counter() - started
    p50, p99 = (1000 * quantile(times, q) for q in (0.5, 0.99))
    return Row(tier, snippet, in_flight, round(p50, 2), round(p99, 2), round(len(times) / elapsed, 1))


def sizing(rows: Sequence[Row], *, batch: int, calls: float, step_s: float) -> str:
    """What the numbers mean for a run: ``batch`` trajectories a step, ``calls`` in each."""
    measured = [row for row in rows if row.tier in TIERS and row.snippet == "sympy"]
    if not measured:
        return ""
    row, cores = max(measured, key=lambda row: row.calls_per_s), len(os.sched_getaffinity(0))
    need_s = batch * calls / row.calls_per_s
    return (
        f"{batch} trajectories with {calls:g} sympy calls each are {batch * calls:g} calls a step: "
        f"{need_s:.1f} s with {row.in_flight} slots on {cores} cores, {need_s / step_s:.0%} of a step of "
        f"{step_s:g} s (spread over the rollout, if calls overlap sampling)"
    )


def as_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]
