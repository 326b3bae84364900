"""What the tests of the sandbox share."""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from torl.sandbox import Limits, Result, Sandbox


@functools.cache
def shared() -> Sandbox:
    """One sandbox with wide limits; its threads end with the test run."""
    return Sandbox(Limits(timeout_s=20.0, cpu_s=20.0, workers=2))


def run(code: str, **limits: Any) -> Result:
    """Runs code in the shared sandbox, or in one of its own under the limits given."""
    if limits:
        result: Result = use(lambda box: box.run(code), **limits)
        return result
    return asyncio.run(shared().run(code))


def use(work: Callable[[Sandbox], Coroutine[Any, Any, Any]], **limits: Any) -> Any:
    async def main() -> Any:
        async with Sandbox(Limits(**limits)) as box:
            return await work(box)

    return asyncio.run(main())


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()
