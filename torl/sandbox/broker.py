"""The broker: one thread between the trainer and the zygotes, with the clocks and the verdicts.

    trainer → broker   {"op": "run", "id", "cells", "limits", ...} | {"op": "stop", "id"}
                       {"op": "end", "session"}
    broker → trainer   {"op": "ready", "tier", ...} | {"op": "refused", "why"}    once, at the start
                       {"op": "result", "id", ...} | {"op": "waiting", "why"} | {"op": "restarted", "why"}

When the trainer hangs up or dies, the broker ends, and with it all zygotes and children.
"""

import contextlib
import dataclasses
import os
import resource
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from torl.sandbox import proc
from torl.sandbox.frames import BrokenFrame, Unpacker, pack, receive
from torl.sandbox.interpreter import Interpreter
from torl.sandbox.job import Job
from torl.sandbox.pool import Pool
from torl.sandbox.process import Child
from torl.sandbox.tiers import Plan
from torl.sandbox.types import Limits, Result
from torl.sandbox.zygotes import Zygote

RETRIES = 1  # of a call that the sandbox failed
DIE_S = 10.0  # for a killed child to be gone; then its zygote is stuck
LAUNCH_S = 30.0  # for a child to have its layers on, on a busy machine


class Broker:
    """Serves one trainer until it hangs up."""

    def __init__(self, trainer: socket.socket, config: dict[str, Any]) -> None:
        self._trainer = trainer
        self._trainer.setblocking(False)
        self._unpacker = Unpacker()
        self._unsent = bytearray()
        self._slots: int = config["slots"]
        self._patience_s: float = config["patience_s"]
        self._selector = selectors.DefaultSelector()
        self._queue: deque[Job] = deque()
        self._jobs: dict[int, Job] = {}  # of the trainer, by its numbers
        self._running: dict[int, Job] = {}  # by their child's number
        self._sessions: dict[str, Child] = {}
        self._used: set[int] = set()  # slots: each child has a user of its own
        self._numbers = 0
        self._oom_kills = _oom_kills()
        self._pool = Pool(
            Interpreter(**config["python"]),
            [Plan(**plan) for plan in config["plans"]],
            config["preload"],
            size=-(-self._slots // 4),
            broker=self,
        )

    # --- the loop -----------------------------------------------------------------------------

    def serve(self) -> None:
        self.watch(self._trainer, self._hear)
        parent = os.pidfd_open(os.getppid())  # EOF does not come while a fork of it holds the socket
        self.watch(parent, lambda: sys.exit(0))
        self._pool.start()
        while True:
            for key, _ in self._selector.select(self._tick()):
                if key.fd in self._selector.get_map():  # not closed by one served before it
                    key.data()

    def watch(self, descriptor: int | socket.socket, served: Callable[[], object]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, served)

    def unwatch(self, descriptor: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    def _tick(self) -> float:
        """Keeps all limits, starts what can start. Returns the seconds until it must be called again."""
        now = time.monotonic()
        waits = []
        self._pool.tick(now)
        for number, job in list(self._running.items()):
            if number in self._running:  # not lost with the zygote of one before it
                waits.append(job.look(now))
                self._check_stuck(job, now)
        self._give_up(now)
        while self._queue and len(self._running) < self._slots and self._pool.ready():
            self._launch(self._queue.popleft())
        return min([self._pool.tick(now), *waits])  # again: what was launched may have found a zygote dead

    def _check_stuck(self, job: Job, now: float) -> None:
        child = job.child
        assert child is not None
        if not job.started and now > job.launched + LAUNCH_S:
            self._pool.lost(child, "a child does not get its layers on")
        elif child.killed_at and now > child.killed_at + DIE_S:
            self._pool.lost(child, "a killed child does not die")

    def _give_up(self, now: float) -> None:
        """A world that has no worker for so long is not going to have one."""
        why = self._pool.waiting
        while why and self._queue and now > self._queue[0].arrived + self._patience_s:
            job = self._queue.popleft()
            job.done(job, Result("sandbox_error", reason=f"no worker could be had: {why}"))

    # --- the trainer --------------------------------------------------------------------------

    def tell(self, message: dict[str, Any]) -> None:
        """Never waits for a busy trainer: the clocks must go on."""
        self._unsent += pack(message)
        self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._trainer.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            sys.exit(0)  # the trainer is gone
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if events != self._selector.get_key(self._trainer).events:
            self._selector.modify(self._trainer, events, self._hear)

    def _hear(self) -> None:
        if self._unsent:
            self._send()
        try:
            messages = receive(self._trainer, self._unpacker)
        except BlockingIOError:
            return
        except BrokenFrame as error:
            sys.exit(f"torl sandbox broker: {error}")
        if messages is None:
            sys.exit(0)
        for message in messages:
            try:
                self._obey(message)
            except (KeyError, TypeError, ValueError) as error:
                sys.exit(f"torl sandbox broker: bad message: {error!r}")

    def _obey(self, message: dict[str, Any]) -> None:
        if message["op"] == "run":
            self._accept(message)
        elif message["op"] == "stop":
            self._stop(self._jobs.get(message["id"]))
        elif message["op"] == "end":
            self._end_session(message["session"])
        else:
            raise ValueError(message["op"])

    def _accept(self, message: dict[str, Any]) -> None:
        job = Job(message["id"], message["cells"], Limits(**message["limits"]), self._report)
        job.stdin, job.session = message["stdin"], message["session"]
        job.fresh, job.retries = message["fresh"], message["retries"]
        self._jobs[job.number] = job
        if job.too_long():
            text = f"SyntaxError: the code is longer than {job.limits.code_kb} KB\n"
            job.done(job, Result("error", exit_code=1, stderr=text, stderr_bytes=len(text)))
        else:
            self._queue.append(job)

    def _report(self, job: Job, result: Result) -> None:
        if self._jobs.pop(job.number, None) is not None:
            self.tell({"op": "result", "id": job.number, **dataclasses.asdict(result)})

    def _stop(self, job: Job | None) -> None:
        if job is None:  # its result is on its way
            return
        job.stopped = True
        if job.child is not None:
            job.child.kill()
        else:
            self._queue.remove(job)
            job.done(job, Result("sandbox_error", reason="stopped before it began"))

    def _end_session(self, name: str) -> None:
        child = self._sessions.pop(name, None)
        if child is not None:
            child.kill()  # its exit is reported, and frees its slot

    # --- a call -------------------------------------------------------------------------------

    def _launch(self, job: Job) -> None:
        child = self._sessions.get(job.session) if job.session else None
        if child is not None:
            self._next_cell(job, child)
        elif job.session and not job.fresh:
            job.done(job, Result("sandbox_error", reason="the session's process is gone"))
        else:
            self.start(job, self._pool.least_busy())

    def start(self, job: Job, zygote: Zygote) -> None:
        """Runs a job in a new child. Called by the pool, too, for its tests of new zygotes."""
        self._numbers += 1
        slot = next(n for n in range(len(self._used) + 1) if n not in self._used)
        try:
            child = Child(
                self._numbers,
                slot,
                job.program(),
                job.stdin,
                page_bytes=job.page_bytes,
                session=job.session,
            )
        except OSError as error:  # no descriptor left
            self._queue.appendleft(job)
            self._pool.pause(str(error))
            return
        self._used.add(slot)
        job.begin(child)
        self._running[child.number] = job
        for descriptor in (child.out, child.err):
            self.watch(descriptor, lambda d=descriptor: self._drain(child, d))  # type: ignore[misc]
        self.watch(child.ready, lambda: self._child_ready(child))
        if child.control >= 0:
            self.watch(child.control, lambda: self._cell_done(child))
            self._sessions[job.session] = child
        self._pool.ask(zygote, job.request(child), child)

    def _next_cell(self, job: Job, child: Child) -> None:
        child.thaw()
        job.begin(child)
        job.start_clock()
        self._running[child.number] = job
        child.clear_page()
        child.hand_over(job.program())

    def _child_ready(self, child: Child) -> None:
        data = os.read(child.ready, 1)
        self.unwatch(child.ready)
        job = self._running.get(child.number)
        if data == b"R" and job is not None:
            job.start_clock()

    def _drain(self, child: Child, descriptor: int) -> None:
        job = self._running.get(child.number)
        if job is None or not job.drain(descriptor):
            self.unwatch(descriptor)
        elif job.too_much_output():
            job.kill("output_limit")

    def _cell_done(self, child: Child) -> None:
        """A cell of a session says that it has ended, and with which code: the program's claim."""
        data = os.read(child.control, 1)
        job = self._running.get(child.number)
        if not data:
            self.unwatch(child.control)
        elif job is not None and job.started:
            child.freeze()
            del self._running[child.number]
            self._drain_all(job, child)
            job.done(job, job.result(data[0], self._pool.plan.tier, lives=True))

    def _drain_all(self, job: Job, child: Child) -> None:
        for descriptor in (child.out, child.err):
            while not job.too_much_output() and job.drain(descriptor):
                pass

    def ended(self, child: Child) -> None:
        """A child was reaped: judge it. Called by the pool."""
        job = self._running.pop(child.number, None)
        if job is not None and not job.started:
            self._child_ready(child)  # its word may stand in the pipe still
        if job is not None:
            self._drain_all(job, child)
        self._judge(job, child)
        self._forget(child)

    def _judge(self, job: Job | None, child: Child) -> None:
        if job is None:  # a session between its cells
            return
        assert child.exit is not None
        if job.stopped:
            job.done(job, Result("sandbox_error", reason="stopped while it ran"))
        elif not job.started:
            said = job.err.text()[0].strip()
            self.failed(job, f"a layer could not be put on: {said or 'the child ended at once'}")
        else:
            result = job.result(child.exit.code, self._pool.plan.tier)
            if result.status == "crashed" and result.signal == 9 and self._memory_ran_out():
                self.failed(job, "the machine ran out of memory, and the system killed the call")
            else:
                job.done(job, result)

    def _memory_ran_out(self) -> bool:
        before, self._oom_kills = self._oom_kills, _oom_kills()
        return self._oom_kills > before

    def _forget(self, child: Child) -> None:
        for descriptor in (child.out, child.err, child.ready, child.control):
            self.unwatch(descriptor)
        if self._sessions.get(child.session) is child:
            del self._sessions[child.session]
        self._used.discard(child.slot)
        child.close()

    def lost(self, child: Child, why: str) -> None:
        """The child's zygote is gone. Called by the pool."""
        job = self._running.pop(child.number, None)
        self._forget(child)
        if job is not None:
            self.failed(job, why)

    def failed(self, job: Job, why: str) -> None:
        """The sandbox failed a call: it is tried again, or the world's fault."""
        job.child, job.reason = None, why
        if job.stopped or job.retries >= RETRIES or (job.session and not job.fresh) or job.internal:
            job.done(job, Result("sandbox_error", reason=why, retries=job.retries))
        else:
            job.retries += 1
            self._queue.appendleft(job)

    def refused(self, child: Child, why: str) -> None:
        """No process could be had for a child: its call waits. Called by the pool."""
        job = self._running.pop(child.number)
        self._forget(child)
        job.child = None
        if job.internal:
            job.done(job, Result("sandbox_error", reason=why))
        else:
            self._queue.appendleft(job)


def _oom_kills() -> int:
    """How many processes this system has killed for want of memory."""
    try:
        return proc.number("/proc/vmstat", "oom_kill")
    except OSError:
        return 0


def main(descriptor: int, config: dict[str, Any]) -> None:
    """The broker's process. ``descriptor`` is its end of the trainer's socket."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every call needs a few
    with socket.socket(fileno=descriptor) as trainer:
        trainer.set_inheritable(False)
        Broker(trainer, config).serve()
