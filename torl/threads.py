"""Threads: a user's blocking function beside the event loop, and OpenMP's workers out of the way."""

import asyncio
import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


async def in_thread(fn: Callable[..., Any], *arguments: Any) -> Any:
    """The value of ``fn``, run in a thread of its own.

    A daemon, not a pool's: a function that never returns can be neither killed nor waited for,
    so it must not hold up other calls or the end of the program.
    """
    done: Future[tuple[Any, BaseException | None]] = Future()
    done.set_running_or_notify_cancel()  # a caller that gave up cannot cancel it under the thread
    run = contextvars.copy_context().run

    def work() -> None:
        try:
            done.set_result((run(fn, *arguments), None))
        except BaseException as error:  # carried over as a value: StopIteration cannot be set
            done.set_result((None, error))

    threading.Thread(target=work, name=f"torl-{fn!r}", daemon=True).start()
    value, error = await asyncio.wrap_future(done)
    if error is None:
        return value
    if isinstance(error, Exception):
        raise error
    raise RuntimeError(repr(error)) from error  # even SystemExit is only this function's failure


def dismiss_workers() -> None:
    """Ends the OpenMP workers that belong to the calling thread; they come back when it needs them.

    GNU's OpenMP gives every thread that computes its own workers. When there are more of them than
    cores, even idle ones, it no longer lets them spin, and each operation waits some 50 us for one to
    wake up: a decoding pass of 4 sequences takes 22 ms instead of 10. So who stops computing sends his
    workers home.
    """
    with contextlib.suppress(AttributeError, OSError):  # another OpenMP, or an old one
        ctypes.CDLL(None).omp_pause_resource_all(1)
