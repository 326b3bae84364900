"""Runs cases in one sandbox and looks at everything that they could have harmed."""

import asyncio
import contextlib
import ctypes
import importlib.util
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from torl.sandbox import Limits, Result, Sandbox

from .case import Case
from .world import PR_SET_CHILD_SUBREAPER, World

USUAL = Limits(cpu_s=3.0, timeout_s=6.0, workers=4)
BATCH = 16
OVERSHOOT_S = 1.5

CANARY = """
import builtins, decimal, gc, locale, logging, os, random, signal, sys, threading, warnings
import numpy as np, sympy
from sympy import Integer, Symbol, latex, sin, solve
x = Symbol('x')
def names():
    try: return os.listdir('.') if os.getcwd() == '/box' else ''
    except OSError as e: return e.errno
print(solve(x**2 - 5*x + 6, x), Integer(2) + 3, latex(sin(x) / 2), sum([1, 2, 3]), np.random.rand())
print(np.ones(3).sum(), np.arange(4) / 3, np.geterr(), random.random(), hash('abc'))
print(decimal.getcontext(), locale.setlocale(locale.LC_ALL), logging.root.handlers, logging.root.level)
print(sys.getrecursionlimit(), sys.get_int_max_str_digits(), sys.getswitchinterval(), gc.get_threshold())
print([signal.getsignal(s) for s in (2, 13, 14, 15, 24)], signal.pthread_sigmask(0, []), gc.isenabled())
print(len(warnings.filters), len(sys.path), len(sys.meta_path), len(sys.path_hooks), signal.getitimer(0))
print(os.getcwd(), names(), os.umask(0o22), sorted(os.environ), sorted(vars(builtins)))
print(sorted(n for n in sys.modules if 'evil' in n), sys.stdout.encoding, sys.stdin.read(), gc.callbacks)
print(sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__, threading.active_count())
print(sorted(set(globals()) - {'_'}))
"""


class Sweep:
    """One sandbox, what it said at first, and the world around it."""

    def __init__(self, box: Sandbox, world: World, tier: str) -> None:
        self._box, self._world, self._tier = box, world, tier
        self._canary, self._processes = "", frozenset[int]()

    async def run(self, cases: Iterable[Case]) -> AsyncIterator[tuple[Case, Result, list[str]]]:
        """Each case's result, and what is wrong with it or with the world afterwards."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans are seen
        self._canary = (await self._box.run(CANARY)).stdout
        assert self._canary.count("\n") >= 8, self._canary
        self._processes = self._below()
        for batch in _batches(cases):
            done = await asyncio.gather(*(self._one(case.on(self._tier)) for case in batch))
            left = await self._changed() + await self._left()
            for case, (result, complaints) in zip(batch, done, strict=True):
                yield case, result, complaints + left

    async def _one(self, case: Case) -> tuple[Result, list[str]]:
        limits = case.limits_of(self._box.limits)
        code = self._world.fill(case.code)
        result = await self._box.run(code, limits=limits, stdin=case.stdin)
        if result.retries:
            # Once in thousands of calls the world fails one, which is what retries are for. A case that
            # brings it about does so again.
            print(f"{case.id} was retried: {result.reason}", file=sys.stderr)
            result = await self._box.run(code, limits=limits, stdin=case.stdin)
        complaints = wrong(case, result) + inconsistent(result, limits, self._tier)
        complaints += self._world.complaints()
        if case.section == "F":
            complaints += await self._changed()
        if self._box.health.restarts:
            complaints.append("a zygote or the broker was lost")
            self._box.health.restarts = 0
            self._processes = frozenset()
        return result, complaints

    async def _changed(self) -> list[str]:
        """What a call finds that the first one did not."""
        canary = await self._box.run(CANARY)
        if canary.stdout == self._canary:
            return []
        return [f"canary: {_difference(self._canary, canary.stdout)} {canary.stderr[-300:]}"]

    def _below(self) -> frozenset[int]:
        return descendants() - {self._world.pid}

    async def _left(self) -> list[str]:
        """Processes that should not be there any more."""
        if not self._processes:  # zygotes were replaced
            await asyncio.sleep(1.0)
            self._processes = self._below()
        end = time.monotonic() + 1.0
        while (now := self._below()) != self._processes and time.monotonic() < end:
            await asyncio.sleep(0.005)
        left = [f"a process was left behind: {_name(pid)}" for pid in now - self._processes]
        for pid in now - self._processes:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
                os.waitpid(pid, 0)
        return left


def possible(case: Case) -> bool:
    """Whether this machine has what the case needs."""
    here = all(importlib.util.find_spec(name) for name in case.needs.split())
    return here and case.machine in ("", os.uname().machine)


def wrong(case: Case, result: Result) -> list[str]:
    """In what the result differs from what the case wants."""
    found = []
    if result.status not in case.want.split():
        found.append(f"status {result.status}, wanted {case.want}")
    for name in ("out", "err", "value"):
        pattern, text = (
            getattr(case, name),
            {"out": result.stdout, "err": result.stderr}.get(name, result.value),
        )
        if pattern and not re.search(pattern, text, re.MULTILINE):
            found.append(f"{name}: no {pattern!r} in {text[-300:]!r}")
    hit = re.search(case.forbidden, result.stdout + result.value)
    if hit:
        found.append(f"forbidden: {hit[0]!r} in {(result.stdout + result.value)[-300:]!r}")
    if case.section == "G" and not case.err and result.status == "ok" and result.stderr:
        found.append(f"err: {result.stderr[-300:]!r}")
    if case.section == "G" and re.search(r'File "/', result.stderr):
        found.append("err: a path of the host")
    if case.signal and result.signal != case.signal:
        found.append(f"signal {result.signal}, wanted {case.signal}")
    if case.exit_code is not None and result.exit_code != case.exit_code:
        found.append(f"exit code {result.exit_code}, wanted {case.exit_code}")
    return found


def inconsistent(result: Result, limits: Limits, tier: str) -> list[str]:
    """What cannot be true of any result."""
    rules = {
        "ok and exit code 0 go together": (result.status == "ok") <= (result.exit_code == 0),
        "error and another exit code go together": (result.status == "error") == bool(result.exit_code),
        "an exit code or a signal": (result.exit_code is None) != (result.signal is None),
        "a crash has a signal": result.status != "crashed" or bool(result.signal),
        "a kill is a SIGKILL": not result.status.startswith("timeout_w") or result.signal == 9,
        f"no failure: {result.reason}": result.status != "sandbox_error" and not result.reason,
        "no retry": result.retries == 0,
        "the tier is named": result.tier == (tier if result.run_s else None),
        "not a session": not result.lives,
        "counts are no less than what was cut": 0 <= result.stdout_cut <= result.stdout_bytes
        and 0 <= result.stderr_cut <= result.stderr_bytes,
        "a cut is noted": (result.stdout_cut == 0 or "bytes cut ..." in result.stdout)
        and (result.stderr_cut == 0 or "bytes cut ..." in result.stderr),
        "what was not cut is counted": _counted(result.stdout, result.stdout_cut, result.stdout_bytes)
        and _counted(result.stderr, result.stderr_cut, result.stderr_bytes),
        "what is kept is bounded": max(len(result.stdout), len(result.stderr), len(result.value))
        <= (limits.output_kb << 10) + 100,
        "a value comes from a good end only": not result.value or result.status == "ok",
        "a limit on processor time was reached": result.status != "timeout_cpu"
        or result.cpu_s >= limits.cpu_s,
        "a limit on time was reached": result.status != "timeout_wall" or result.run_s >= limits.timeout_s,
        "it ended in time": result.run_s <= limits.timeout_s + OVERSHOOT_S
        and result.cpu_s <= limits.cpu_s + OVERSHOOT_S,
        "times are positive": min(result.queue_s, result.run_s, result.cpu_s) >= 0,
    }
    return [f"not so: {rule}" for rule, holds in rules.items() if not holds]


def descendants() -> frozenset[int]:
    """The processes below this one, zombies not counted."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents[int(entry)] = int(fields[1])
    found: set[int] = set()
    grown = {os.getpid()}
    while grown:
        grown = {child for child, parent in parents.items() if parent in grown} - found
        found |= grown
    return frozenset(found)


def _batches(cases: Iterable[Case]) -> list[list[Case]]:
    alone = [[case] for case in cases if case.alone]
    others = [case for case in cases if not case.alone]
    return alone + [others[i : i + BATCH] for i in range(0, len(others), BATCH)]


def _counted(text: str, cut: int, seen: int) -> bool:
    return bool(cut) or "\ufffd" in text or len(text.encode("utf-8", "surrogatepass")) == seen


def _difference(before: str, now: str) -> str:
    for old, new in zip(before.splitlines(), now.splitlines(), strict=False):
        if old != new:
            return f"{old[:300]!r} has become {new[:300]!r}"
    return f"{len(before)} characters have become {len(now)}"


def _name(pid: int) -> Any:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()[:200]
    return pid
