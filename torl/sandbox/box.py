"""The sandbox: a few threads that each run one snippet at a time."""

import asyncio
import contextlib
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from torl.errors import SandboxFault, UserError
from torl.sandbox.call import Call
from torl.sandbox.interpreter import Interpreter, TaskCount, find_interpreter
from torl.sandbox.types import Limits, Result


class Sandbox:
    """Runs snippets of Python, each in a process of its own, ``Limits.slots`` at a time.

    May be used from several event loops, one after the other. Nothing is started before the
    first call. Raises UserError on a system that is not Linux.
    """

    def __init__(self, limits: Limits | None = None, *, python: str = sys.executable) -> None:
        if sys.platform != "linux":
            raise UserError("the sandbox needs Linux: it uses pidfds and address-space limits")
        self.limits = limits or Limits()
        self._executable = python
        self._python: Interpreter | None = None
        self._find = threading.Lock()
        self._tasks = TaskCount()
        self._calls: set[Call] = set()
        self._closed = False
        self._threads = ThreadPoolExecutor(self.limits.slots, thread_name_prefix="torl-sandbox")

    async def __aenter__(self) -> "Sandbox":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, code: str) -> Result:
        """Runs one snippet; calls beyond the slots wait, which is not charged to their limits.

        Raises SandboxFault when the sandbox, not the code, failed. When the task is cancelled
        the snippet's processes and its directory are gone before CancelledError is raised.
        """
        if self._closed:
            raise SandboxFault("the sandbox is closed")
        call = Call(code, self.limits)
        try:
            job = self._threads.submit(self._run, call)
        except RuntimeError as error:  # no thread can be had
            raise SandboxFault(f"the sandbox could not take the call: {error}") from error
        self._calls.add(call)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            call.stop()
            await _settled(job)
            raise
        finally:
            self._calls.discard(call)

    async def close(self) -> None:
        """Stops every call that runs or waits (they raise SandboxFault) and ends the threads."""
        self._closed = True
        for call in list(self._calls):
            call.stop()
        await asyncio.to_thread(self._threads.shutdown)

    def _run(self, call: Call) -> Result:
        python = self._interpreter()
        return call.run(python, self._tasks() + self.limits.processes * (self.limits.slots - 1))

    def _interpreter(self) -> Interpreter:
        with self._find:
            if self._python is None:
                self._python = find_interpreter(self._executable)
            return self._python


async def _settled(job: "Future[Result]") -> None:
    """Waits until the job has ended, even when it is cancelled again meanwhile."""
    while not job.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([asyncio.wrap_future(job)])
