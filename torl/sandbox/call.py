"""One snippet's run: started, watched, judged.

All of it happens in a thread of the sandbox, so that limits hold and pipes are drained while
the event loop is busy.
"""

import math
import os
import select
import signal
import threading
import time

from torl.errors import SandboxFault
from torl.sandbox.capture import Capture
from torl.sandbox.interpreter import Interpreter
from torl.sandbox.process import READ, REAP_S, Process
from torl.sandbox.scratch import make_scratch, remove_scratch
from torl.sandbox.types import Limits, Result, Status

LOOK_S = 0.05  # how often the processor clock and the memory are looked at


class Call:
    """``run`` belongs to one thread; ``stop`` may come from any."""

    def __init__(self, code: str, limits: Limits) -> None:
        self._code, self._limits = code.encode("utf-8", "surrogatepass"), limits
        self._queued = time.monotonic()
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._stopped = False
        self._killed: Status | None = None  # why we killed it
        self._out, self._err = Capture(limits.output_kb << 10), Capture(limits.output_kb << 10)
        self._cpu_s = self._rss_mb = 0.0

    def stop(self) -> None:
        """Kills the call, or keeps it from starting; ``run`` then raises SandboxFault."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def run(self, python: Interpreter, tasks: int) -> Result:
        """Runs the snippet to its end. Raises SandboxFault when it could not be run.

        ``tasks`` is the number of tasks that this user may have beside the call's own.
        """
        queue_s = time.monotonic() - self._queued
        scratch = None
        try:
            scratch = make_scratch()
            process = self._start(python, tasks, scratch)
            return self._attend(process, queue_s)
        except OSError as error:
            raise SandboxFault(f"the sandbox could not run the call: {error}") from error
        finally:
            if scratch is not None:
                remove_scratch(scratch)

    def _start(self, python: Interpreter, tasks: int, scratch: str) -> Process:
        limits = self._limits
        numbers = [  # the kernel's limits are coarse: they are set behind those that we keep
            math.ceil(limits.cpu_s) + 1,
            limits.memory_mb,
            limits.file_mb,
            limits.processes + tasks,
            limits.descriptors,
            math.ceil(limits.timeout_s) + 1,
        ]
        with self._lock:
            if self._stopped:
                raise SandboxFault("the call was stopped before it began")
            self._process = Process(python, numbers, self._code, scratch)
            return self._process

    def _attend(self, process: Process, queue_s: float) -> Result:
        try:
            process.await_ready()
            started = time.monotonic()
            self._watch(process, started)
            run_s = time.monotonic() - started
        except BaseException:
            process.reap()
            raise
        code, cpu_s = process.reap()
        if self._stopped:
            raise SandboxFault("the call was stopped while it ran")
        return self._result(code, cpu_s, queue_s, run_s)

    def _watch(self, process: Process, started: float) -> None:
        """Drains the pipes and keeps the limits until the process has ended (not yet reaped)."""
        streams = {process.stdout: self._out, process.stderr: self._err}
        poll = select.poll()
        for descriptor in (*streams, process.watch):
            poll.register(descriptor, select.POLLIN)
        deadline, looked = started + self._limits.timeout_s, -math.inf
        while True:
            now = time.monotonic()
            if now - looked >= LOOK_S:
                looked = now
                self._look(process)
            self._enforce(process, now, deadline)
            wait_s = min(LOOK_S, deadline - now) if now < deadline else LOOK_S
            ready = [descriptor for descriptor, _ in poll.poll(wait_s * 1000)]
            for descriptor in ready:
                if descriptor in streams and not _drain(descriptor, streams[descriptor]):
                    poll.unregister(descriptor)
            if process.watch in ready:
                break
        for descriptor, capture in streams.items():
            os.set_blocking(descriptor, False)  # a process that left the group may hold it open
            while not self._too_much(capture) and _drain(descriptor, capture):
                pass

    def _look(self, process: Process) -> None:
        self._cpu_s = max(self._cpu_s, process.cpu_s())
        self._rss_mb = max(self._rss_mb, process.peak_rss_mb())

    def _enforce(self, process: Process, now: float, deadline: float) -> None:
        why: Status | None = None
        if self._too_much(self._out) or self._too_much(self._err):
            why = "output_limit"
        elif self._cpu_s >= self._limits.cpu_s:
            why = "timeout_cpu"
        elif now >= deadline:
            why = "timeout_wall"
        if why is not None:
            self._killed = self._killed or why
            process.kill()
        if now > deadline + REAP_S:
            raise SandboxFault(f"process {process.pid} of the sandbox does not die")

    def _too_much(self, capture: Capture) -> bool:
        return capture.seen > self._limits.kill_output_mb << 20

    def _result(self, code: int, cpu_s: float, queue_s: float, run_s: float) -> Result:
        stdout, stdout_cut = self._out.text()
        stderr, stderr_cut = self._err.text()
        return Result(
            status=self._verdict(code, cpu_s),
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=stdout,
            stderr=stderr,
            stdout_cut=stdout_cut,
            stderr_cut=stderr_cut,
            stdout_bytes=self._out.seen,
            stderr_bytes=self._err.seen,
            queue_s=queue_s,
            run_s=run_s,
            cpu_s=cpu_s,
            max_rss_mb=self._rss_mb,
        )

    def _verdict(self, code: int, cpu_s: float) -> Status:
        """From the wait status, our clock and our counters alone."""
        if self._too_much(self._out) or self._too_much(self._err):
            return "output_limit"
        if code >= 0:
            return "ok" if code == 0 else "error"
        if -code == signal.SIGKILL and self._killed is not None:
            return self._killed
        if -code in (signal.SIGKILL, signal.SIGXCPU) and cpu_s >= self._limits.cpu_s:
            return "timeout_cpu"
        if -code == signal.SIGKILL and self._rss_mb >= self._limits.memory_mb / 2:
            return "oom"
        return "crashed"


def _drain(descriptor: int, capture: Capture) -> bool:
    """Reads once. False when there is no more: no writer is left, or nothing is there yet."""
    try:
        data = os.read(descriptor, READ)
    except BlockingIOError:
        return False
    capture.feed(data)
    return bool(data)
