"""A child process of a zygote, as the broker holds it: pipes, a shared page, a pidfd."""

import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass

from torl.sandbox import proc
from torl.sandbox.capture import join
from torl.sandbox.inside.page import HEADER


@dataclass(frozen=True)
class Exit:
    """What the zygote saw when it reaped a child."""

    code: int  # minus the signal's number when a signal ended it
    cpu_s: float
    max_rss_mb: float


class Child:
    """Made before the process is: its descriptors go to the zygote with the request.

    ``out``, ``err``, ``ready`` and, in a session, ``control`` are descriptors to read; -1 when
    closed. Raises OSError when no descriptor is left.
    """

    def __init__(
        self, number: int, slot: int, program: bytes, stdin: str, *, page_bytes: int, session: str
    ):
        self.number, self.slot, self.session = number, slot, session
        self.exit: Exit | None = None
        self.rss_before_mb = 0.0  # resident memory that it shares with its zygote
        self.out = self.err = self.ready = self.control = -1
        self._pidfd, self._pid = -1, 0
        self.killed_at = 0.0  # on the monotonic clock; 0: not
        self._theirs: list[int] = []
        try:
            self._page = memory_file("page", size=page_bytes)
            self._open(program, stdin)
        except OSError:
            self.close()
            raise

    def _open(self, program: bytes, stdin: str) -> None:
        self._theirs = [memory_file("code", program), os.dup(self._page)]
        self._theirs.append(_input(stdin))
        self.out, out = os.pipe()
        self._theirs.append(out)
        self.err, err = os.pipe()
        self._theirs.append(err)
        self.ready, ready = os.pipe()
        self._theirs.append(ready)
        if self.session:
            ours, theirs = socket.socketpair()
            self.control = ours.detach()
            self._theirs.append(theirs.detach())
            os.set_blocking(self.control, False)
            self._code = os.dup(self._theirs[0])
        for descriptor in (self.out, self.err, self.ready):
            os.set_blocking(descriptor, False)

    @property
    def for_zygote(self) -> list[int]:
        """The child's own ends, in the order of inside.child.Files."""
        return self._theirs

    def sent(self) -> None:
        """The zygote has its copies."""
        while self._theirs:
            os.close(self._theirs.pop())

    def started(self, pidfd: int) -> None:
        """The process exists. Its number in our eyes: the zygote may count in another namespace."""
        self._pidfd = pidfd
        self._pid = proc.number(f"/proc/self/fdinfo/{pidfd}", "Pid")
        if self.killed_at:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, now or as soon as it is there."""
        self.killed_at = self.killed_at or time.monotonic()
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        """Between the cells of a session nothing may run unseen."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def hand_over(self, program: bytes) -> None:
        """The next cell of a session: its code goes into the file of the first one. Never waits."""
        os.pwrite(self._code, program, 0)
        try:
            os.write(self.control, len(program).to_bytes(4, "big"))
        except OSError:  # it has ended, or does not listen
            self.kill()

    def _signal(self, number: int) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def cpu_s(self) -> float:
        """Processor seconds of all its threads until now."""
        if self.exit is not None:
            return self.exit.cpu_s
        try:
            return time.clock_gettime((~self._pid << 3) | 2) if self._pid else 0.0  # a process' clock
        except OSError:
            return 0.0

    def max_rss_mb(self) -> float:
        """Peak resident memory until now, the pages shared with the zygote included."""
        if self.exit is not None:
            return self.exit.max_rss_mb
        try:
            return proc.number(f"/proc/{self._pid}/status", "VmHWM") / 1024
        except OSError:
            return 0.0

    def clear_page(self) -> None:
        os.pwrite(self._page, bytes(HEADER.size), 0)

    def last_cell(self) -> tuple[float, float] | None:
        """Its CPU clock and the monotonic clock when the last cell began; None: not yet.

        The child's own word: a lie moves time from one of its budgets to the other.
        """
        _, _, begun, *clocks = HEADER.unpack(os.pread(self._page, HEADER.size, 0))
        return (clocks[0], clocks[1]) if begun else None

    def value(self) -> str:
        """The repr of the last expression, head and tail when it was long. The child's own word."""
        total, stored, *_ = HEADER.unpack(os.pread(self._page, HEADER.size, 0))
        data = os.pread(self._page, stored, HEADER.size)
        tail = 0 if total <= len(data) else len(data) // 4
        text, _ = join(data[: len(data) - tail], data[len(data) - tail :], max(total, len(data)))
        return text

    def close(self) -> None:
        """Closes everything; the process, if it lives, is killed first."""
        if self.exit is None:
            self.kill()
        self.sent()
        for name in ("out", "err", "ready", "control", "_pidfd", "_page", "_code"):
            descriptor = getattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)


def memory_file(name: str, data: bytes = b"", *, size: int = 0) -> int:
    """A file without a place: unlike a pipe it takes any size without a reader."""
    descriptor = os.memfd_create(name)
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    if size:
        os.ftruncate(descriptor, size)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _input(text: str) -> int:
    """What the child reads as its standard input: nothing, unless the caller gave some."""
    if not text:
        return os.open(os.devnull, os.O_RDONLY)
    return memory_file("stdin", text.encode("utf-8", "surrogatepass"))
