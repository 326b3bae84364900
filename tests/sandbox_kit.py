"""What the tests of the sandbox share."""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from torl.sandbox import Limits, Result, Sandbox

WIDE = Limits(timeout_s=20.0, cpu_s=20.0, workers=2)


@functools.cache
def shared() -> Sandbox:
    """One sandbox with wide limits; its processes end with the test run."""
    return Sandbox(WIDE)


def run(code: str, *, stdin: str = "", fresh: bool = False, **limits: Any) -> Result:
    """Runs code in the shared sandbox (or one of its own: ``fresh``) under the limits given."""
    own = Limits(**{**vars(WIDE), **limits})
    if fresh:
        result: Result = use(lambda box: box.run(code, stdin=stdin, limits=own))
        return result
    return asyncio.run(shared().run(code, stdin=stdin, limits=own))


def use(work: Callable[[Sandbox], Coroutine[Any, Any, Any]], **limits: Any) -> Any:
    """What ``work`` returns for a sandbox of its own."""

    async def main() -> Any:
        async with Sandbox(Limits(**limits), preload=()) as box:
            return await work(box)

    return asyncio.run(main())


@functools.cache
def tier() -> str:
    """The isolation that this machine can give."""
    return asyncio.run(shared().start()).tier


def _no_scratch() -> bool:
    return tier() not in ("A", "C")


needs_scratch = pytest.mark.skipif("__import__('sandbox_kit')._no_scratch()", reason="no scratch directory")


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def children(pid: int) -> set[int]:
    """The processes that descend from ``pid``, zombies not counted."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    grown = {pid}
    while grown:
        grown = {child for child, parent in parents.items() if parent in grown} - found
        found |= grown
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()
