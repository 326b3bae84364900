"""A process group that is started, killed and reaped without races.

Nothing runs between fork and exec: the parent may be a huge process with many threads, so the
child takes its limits on itself (runner.py), and says so on a descriptor that it then closes.
"""

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

from torl.errors import SandboxFault
from torl.sandbox.interpreter import START_S, Interpreter, environment

REAP_S = 10.0  # for a killed process to be gone
READ = 1 << 16  # bytes


class Process:
    """A runner in its own session. Any thread may kill it; one thread does the rest.

    ``stdout`` and ``stderr`` are descriptors to read; ``watch`` becomes readable when the
    process has ended. Raises OSError when no process can be had.
    """

    def __init__(self, python: Interpreter, limits: list[int], code: bytes, cwd: str) -> None:
        self._lock = threading.Lock()  # no signal may be sent once the pid is reaped
        self._dead = False
        self._ready, ack = os.pipe()
        try:
            self._popen = _start(python.command(ack, *limits), ack, code, cwd)
        except OSError:
            os.close(self._ready)
            raise
        finally:
            os.close(ack)
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self.stdout, self.stderr = self._popen.stdout.fileno(), self._popen.stderr.fileno()
        self.pid = self._popen.pid
        try:
            self.watch = os.pidfd_open(self.pid)
        except OSError:  # no descriptor left
            self.watch = -1
            self.reap()
            raise

    def await_ready(self) -> None:
        """Waits for the runner's word that its limits are on.

        Raises SandboxFault when it does not come: the snippet has not run yet.
        """
        if _readable(self._ready, START_S) and os.read(self._ready, 1) == b"R":
            return
        self.kill()
        said = os.read(self.stderr, READ) if _readable(self.stderr, 0) else b""
        reason = said.decode("utf-8", "replace").strip()[-500:]
        raise SandboxFault(f"the sandbox's process ended before it ran the code. {reason}")

    def kill(self) -> None:
        """SIGKILL to the whole group, also when its leader has ended."""
        with self._lock:
            if not self._dead:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)

    def cpu_s(self) -> float:
        """The processor time of the leader until now, in seconds."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # Linux: the clock of a process
        except OSError:
            return 0.0

    def peak_rss_mb(self) -> float:
        """The leader's peak resident memory until now; 0 when it has ended.

        Not taken from its usage after death: there Linux counts in the parent's own memory.
        """
        try:
            with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as status:
                peaks = [int(line.split()[1]) for line in status if line.startswith("VmHWM:")]
        except OSError:
            return 0.0
        return peaks[0] / 1024 if peaks else 0.0

    def reap(self) -> tuple[int, float]:
        """Kills what is left of the group and frees everything. To be called once.

        Returns the exit code (minus the signal's number when a signal ended it) and the
        processor seconds, waited-for children included. Raises SandboxFault when it does not die.
        """
        self.kill()  # the leader is not reaped yet, so the group's number cannot be another's
        dying = self.watch >= 0 and not _readable(self.watch, REAP_S)
        with self._lock:
            self._dead = True
            pid, status, usage = os.wait4(self.pid, os.WNOHANG if dying else 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        self._close()
        if not pid:
            raise SandboxFault(f"process {self.pid} of the sandbox does not die")
        return self._popen.returncode, usage.ru_utime + usage.ru_stime

    def _close(self) -> None:
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()
        for descriptor in (self._ready, self.watch):
            if descriptor >= 0:
                os.close(descriptor)


def _start(command: list[str], ack: int, code: bytes, cwd: str) -> "subprocess.Popen[bytes]":
    with _memory_file(code) as source:
        return subprocess.Popen(
            command,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=cwd,
            env=environment(cwd),
            pass_fds=[ack],
            start_new_session=True,
        )


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
    """A file without a name: unlike a pipe it takes any size without a reader."""
    descriptor = os.memfd_create("snippet")
    with open(descriptor, "w+b", buffering=0) as stream:
        rest = memoryview(data)
        while rest:
            rest = rest[stream.write(rest) or 0 :]
        stream.seek(0)
        yield descriptor


def _readable(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
