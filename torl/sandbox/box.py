"""The sandbox as the trainer holds it: calls go to a broker process, results come back."""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Literal

from torl.errors import SandboxFault, UserError
from torl.sandbox import proc
from torl.sandbox.connection import Connection
from torl.sandbox.health import Health
from torl.sandbox.interpreter import Interpreter, find_interpreter
from torl.sandbox.tiers import EVERY_ABI, plans
from torl.sandbox.types import Limits, Report, Result, Tier

log = logging.getLogger("torl")

PRELOAD = ("numpy", "scipy", "sympy")
PATIENCE_S = 600.0  # of a call, while no worker can be had
LONGEST_PAUSE_S = 5.0
RETRIES = 1  # of a call whose broker died
REMEDY = (
    "Ways on: run on Linux 5.13 or newer with seccomp; use a sandbox on another machine (torl sandbox "
    "serve, and sandbox.urls); or accept that the model's code can do whatever you can (sandbox: unsafe)"
)


class Sandbox:
    """Runs snippets of Python, each in a process of its own, ``Limits.slots`` at a time.

    ``tier`` is the isolation to have ("auto": the strongest that works here), ``python`` the
    interpreter of the tool environment, ``preload`` what is imported ahead of the calls, where
    it is installed. May be used from several event loops and threads. Nothing is started before
    ``start`` or the first call.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        python: str = sys.executable,
        tier: Tier | Literal["auto"] = "auto",
        preload: Sequence[str] = PRELOAD,
        patience_s: float = PATIENCE_S,
        _landlock_abi: int = EVERY_ABI,
    ) -> None:
        self.limits = limits or Limits()
        self.health = Health()
        self.report: Report | None = None  # of what was started; None before
        self._executable, self._tier, self._preload = python, tier, list(preload)
        self._patience_s, self._landlock_abi = patience_s, _landlock_abi
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._pending: dict[int, _Call] = {}
        self._sessions: dict[str, bool] = {}  # whether a process of theirs waits for the next cell
        self._python: Interpreter | None = None
        self._slots = 0
        self._connection: Connection | None = None
        self._started: Future[Report] = _future()
        self._closed = False

    async def __aenter__(self) -> "Sandbox":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> Report:
        """Starts and tests it, if that was not done yet.

        Raises UserError when it cannot be had here, SandboxFault when it was closed meanwhile.
        """
        if not self._started.done():
            await asyncio.to_thread(self._connect)
        return await asyncio.wrap_future(self._started)

    async def run(
        self,
        code: str,
        *,
        earlier: Sequence[str] = (),
        session: str = "",
        stdin: str = "",
        limits: Limits | None = None,
    ) -> Result:
        """Runs one snippet; calls beyond the slots wait, which is not charged to their limits.

        ``earlier`` cells are run first, silently and on a budget of their own; or the cells of a
        ``session`` share one process, until ``end``. ``limits`` are this call's own (``workers``
        is not). A failure of the sandbox is a result too, with status "sandbox_error".
        Raises UserError when no sandbox can be had here, or when the session is busy. When the task
        is cancelled, the snippet's process is gone before CancelledError is raised.
        """
        if self.report is None:
            try:
                await self.start()
            except SandboxFault as fault:
                result = Result("sandbox_error", reason=str(fault))
                self.health.count(result)
                return result
        if session and any(call.session == session for call in list(self._pending.values())):
            raise UserError(f"session {session!r} runs a cell already: its cells go one by one")
        call = _Call(
            next(self._numbers),
            [*earlier, code],
            limits or self.limits,
            stdin,
            session,
            fresh=not self._sessions.get(session),
        )
        self._submit(call)
        try:
            result = await asyncio.wrap_future(call.result)
        except asyncio.CancelledError:
            self._send({"op": "stop", "id": call.number})
            await _settled(call.result)
            raise
        if session:
            self._sessions[session] = result.lives
        self.health.count(result)
        return result

    async def end(self, session: str) -> None:
        """Ends a session; one that is unknown has ended already."""
        if self._sessions.pop(session, None) is not None:
            self._send({"op": "end", "session": session})

    async def close(self) -> None:
        """Ends all processes. Calls that run or wait get a sandbox_error."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.to_thread(connection.close)
        self._abandon("the sandbox was closed")

    # --- the broker ---------------------------------------------------------------------------

    def _connect(self) -> None:
        """Starts a broker unless one is there. Raises UserError, OSError."""
        with self._lock:
            if self._closed:
                raise SandboxFault("the sandbox is closed")
            if self._connection is not None:
                return
            if sys.platform != "linux":
                raise UserError(f"the sandbox needs Linux, and this is {sys.platform}. {REMEDY}")
            self._python = self._python or find_interpreter(self._executable)
            self._slots = self._slots or _slots(self.limits)
            found = plans(self._tier, landlock_abi=self._landlock_abi)
            config = {
                "python": dataclasses.asdict(self._python),
                "plans": [dataclasses.asdict(plan) for plan in found],
                "preload": self._preload,
                "slots": self._slots,
                "patience_s": self._patience_s,
            }
            self._connection = Connection(config, self._hear, self._broken)

    def _submit(self, call: "_Call") -> None:
        with self._lock:
            if self._closed:
                call.fail("the sandbox is closed")
                return
            self._pending[call.number] = call
        self._send(call.message())

    def _send(self, message: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(OSError):  # a broken connection is noticed by its reader
            if self._connection is not None:
                self._connection.send(message)

    def _hear(self, message: dict[str, Any]) -> None:
        """Called by the connection's thread for each message."""
        op = message.pop("op")
        if op == "result":
            call = self._pending.pop(message.pop("id"), None)
            if call is not None:
                call.give(Result(**message))
        elif op == "ready":
            self.report = Report(python=self._executable, slots=self._slots, **message)
            if not self._started.done():
                self._started.set_result(self.report)
        elif op == "refused":
            self._refuse(message["why"])
        elif op == "waiting":
            self.health.pauses += 1
            log.warning("sandbox: no worker can be had, calls wait: %s", message["why"])
        elif op == "restarted":
            self.health.restarts += 1
            log.warning("sandbox: a worker was lost and is replaced: %s", message["why"])

    def _refuse(self, reasons: list[str]) -> None:
        wanted = "no isolation" if self._tier == "auto" else f"sandbox.tier={self._tier}"
        tried = "".join(f"\n  - {reason}" for reason in reasons)
        error = UserError(f"the sandbox refuses to run: {wanted} can be had here. Tried:{tried}\n{REMEDY}")
        if not self._started.done():
            self._started.set_exception(error)
        for call in self._take_pending():
            call.result.set_exception(error)

    def _broken(self, connection: Connection, why: str) -> None:
        """Called by the connection's thread when its broker is gone: another one takes over."""
        with self._lock:
            if self._closed or self._connection is not connection:
                return
            self._connection = None
        self.health.restarts += 1
        log.warning("sandbox: the broker ended (%s); another one is started", why)
        if not self._reconnect():
            self._abandon("no broker could be started")
            return
        for place, call in enumerate(self._take_pending()):
            call.retries += place < self._slots  # calls begin in their order: the others only waited
            if call.retries > RETRIES or not call.fresh:
                call.fail(f"the broker ended: {why}")
            else:
                self._submit(call)

    def _reconnect(self) -> bool:
        end, pause_s = time.monotonic() + self._patience_s, 0.1
        while time.monotonic() < end and not self._closed:
            try:
                self._connect()
                return True
            except (OSError, UserError, SandboxFault) as error:
                log.warning("sandbox: no broker can be started, calls wait: %s", error)
                time.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        return False

    def _abandon(self, why: str) -> None:
        if not self._started.done():
            self._started.set_exception(SandboxFault(why))
        for call in self._take_pending():
            call.fail(why)

    def _take_pending(self) -> "list[_Call]":
        with self._lock:
            calls = list(self._pending.values())
            self._pending.clear()
        return calls


class _Call:
    """A call until its result: enough to make it again."""

    def __init__(
        self, number: int, cells: list[str], limits: Limits, stdin: str, session: str, *, fresh: bool
    ) -> None:
        self.number, self.cells, self.limits = number, cells, limits
        self.stdin, self.session, self.fresh = stdin, session, fresh
        self.retries = 0
        self.result: Future[Result] = _future()

    def message(self) -> dict[str, Any]:
        return {
            "op": "run",
            "id": self.number,
            "cells": self.cells,
            "limits": dataclasses.asdict(self.limits),
            "stdin": self.stdin,
            "session": self.session,
            "fresh": self.fresh,
            "retries": self.retries,
        }

    def give(self, result: Result) -> None:
        with contextlib.suppress(Exception):  # cancelled meanwhile
            self.result.set_result(result)

    def fail(self, reason: str) -> None:
        self.give(Result("sandbox_error", reason=reason, retries=self.retries))


def _future() -> "Future[Any]":
    """One that a waiting task cannot cancel: what it stands for goes on."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def _slots(limits: Limits) -> int:
    """As many as asked for, but no more than half of the memory that is to be had bears."""
    free_mb = proc.number("/proc/meminfo", "MemAvailable") >> 10
    bears = max(1, free_mb // 2 // limits.memory_mb) if free_mb else limits.slots
    if bears < limits.slots:
        log.warning(
            "sandbox: %d calls at once instead of %d: %d MB of memory are to be had, each may use %d MB",
            bears,
            limits.slots,
            free_mb,
            limits.memory_mb,
        )
    return min(bears, limits.slots)


async def _settled(job: "Future[Result]") -> None:
    """Waits until the job has ended, even when it is cancelled again meanwhile."""
    while not job.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([asyncio.wrap_future(job)])
