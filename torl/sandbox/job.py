"""One call, as the broker sees it: its clocks, its counters, its verdict."""

import json
import math
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from torl.sandbox.capture import Capture
from torl.sandbox.inside.page import HEADER
from torl.sandbox.process import Child
from torl.sandbox.types import Limits, Result, Status, Tier

READ = 1 << 16  # bytes read at once
CORES = len(os.sched_getaffinity(0))
LOOK_S = 0.05  # the clocks are looked at no less often than that
SHORTEST_LOOK_S = 0.004
SPARE_CPU_S = 1.0  # earlier cells may take this much longer when they are run again


class Job:
    """A call from its arrival to its result. All its cells but the last are replayed.

    ``done`` is told the result, once.
    """

    def __init__(
        self, number: int, cells: list[str], limits: Limits, done: Callable[["Job", Result], None]
    ) -> None:
        self.number, self.cells, self.limits, self.done = number, cells, limits, done
        self.stdin = ""
        self.session = ""  # the name of the session that it is a cell of
        self.fresh = True  # the session's first cell
        self.retries = 0
        self.reason = ""  # of the last
        self.internal = False  # a test of the sandbox by itself
        self.stopped = False  # nobody waits for it any more
        self.arrived = time.monotonic()
        self.child: Child | None = None

    @property
    def page_bytes(self) -> int:
        return HEADER.size + (self.limits.output_kb << 10)

    def too_long(self) -> bool:
        return sum(map(len, self.cells)) > self.limits.code_kb << 10

    def request(self, child: Child) -> dict[str, Any]:
        """What the zygote is asked for. The kernel's limits are coarse: they stand behind ours."""
        limits = self.limits
        replay = len(self.cells) - 1
        forever = 1 << 20  # s: a session's clock is ours alone
        return {
            "id": child.number,
            "slot": child.slot,
            "page": self.page_bytes,
            "cpu_s": forever if self.session else int(limits.cpu_s * (replay + 1) + replay) + 2,
            "memory_mb": limits.memory_mb,
            "file_mb": limits.file_mb,
            "scratch_mb": limits.scratch_mb,
            "scratch_files": limits.scratch_files,
            "processes": limits.processes,
            "descriptors": limits.descriptors,
        }

    def program(self) -> bytes:
        return json.dumps(self.cells).encode("ascii")

    def begin(self, child: Child) -> None:
        """An attempt starts: nothing of an earlier one counts."""
        self.child = child
        self.launched = time.monotonic()
        self.started = 0.0  # when the code could start; 0: not yet
        self.replaying = len(self.cells) > 1
        self.killed: Status | None = None  # why we killed it
        self.out, self.err = Capture(self.limits.output_kb << 10), Capture(self.limits.output_kb << 10)

    def start_clock(self) -> None:
        """All layers are on, the code may run: from now on, time is charged."""
        assert self.child is not None
        self.started = time.monotonic()
        self.queue_s = self.started - self.arrived
        # By now the code may have taken memory, or have ended.
        self.rss_before_mb = min(self.child.max_rss_mb() or math.inf, self.child.rss_before_mb)
        self.cpu_before = self.child.cpu_s()  # putting the layers on is not charged

    def drain(self, descriptor: int) -> bool:
        """Reads once. False when there is no more: no writer is left, or nothing is there yet."""
        assert self.child is not None
        try:
            data = os.read(descriptor, READ)
        except BlockingIOError:
            return False
        capture = self.out if descriptor == self.child.out else self.err
        capture.feed(data)
        return bool(data)

    def look(self, now: float) -> float:
        """Keeps the limits. Returns the seconds until it must be called again."""
        child, limits = self.child, self.limits
        assert child is not None
        if not self.started:
            return LOOK_S
        self._replayed(now)
        times = len(self.cells) - 1 if self.replaying else 1
        spare = SPARE_CPU_S * times if self.replaying else 0.0
        cpu_left = limits.cpu_s * times + spare - (child.cpu_s() - self.cpu_before)
        wall_left = self.started + limits.timeout_s * times + spare - now
        if self.too_much_output():
            self.kill("output_limit")
        elif cpu_left <= 0:
            self.kill("timeout_cpu")
        elif wall_left <= 0:
            self.kill("timeout_wall")
        return max(SHORTEST_LOOK_S, min(LOOK_S, cpu_left / CORES, wall_left))

    def _replayed(self, now: float) -> None:
        """Once the earlier cells are done, the last one's own budget counts from its start."""
        assert self.child is not None
        clocks = self.child.last_cell() if self.replaying else None
        if clocks is not None:
            self.replaying = False
            self.cpu_before = min(max(clocks[0], self.cpu_before), self.child.cpu_s())
            self.started = min(max(clocks[1], self.started), now)

    def too_much_output(self) -> bool:
        return max(self.out.seen, self.err.seen) > self.limits.kill_output_mb << 20

    def kill(self, why: Status) -> None:
        assert self.child is not None
        self.killed = self.killed or why
        self.child.kill()

    def result(self, code: int, tier: Tier, *, lives: bool = False) -> Result:
        """``code``: as in Exit, or, while the session's process lives, what its cell claims."""
        child = self.child
        assert child is not None
        ended = time.monotonic()
        self._replayed(ended)
        stdout, stdout_cut = self.out.text()
        stderr, stderr_cut = self.err.text()
        return Result(
            status=self._verdict(code),
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=stdout,
            stderr=stderr,
            value=child.value() if code == 0 else "",
            stdout_cut=stdout_cut,
            stderr_cut=stderr_cut,
            stdout_bytes=self.out.seen,
            stderr_bytes=self.err.seen,
            queue_s=self.queue_s,
            run_s=ended - self.started,
            cpu_s=max(0.0, child.cpu_s() - self.cpu_before),
            max_rss_mb=child.max_rss_mb(),
            retries=self.retries,
            reason=self.reason,
            tier=tier,
            lives=lives,
        )

    def _verdict(self, code: int) -> Status:
        """From the wait status, our clock and our counters alone."""
        child = self.child
        assert child is not None
        if self.too_much_output():
            return "output_limit"
        if code >= 0:
            return "ok" if code == 0 else "error"
        if -code == signal.SIGKILL and self.killed is not None:
            return self.killed
        if (
            -code in (signal.SIGKILL, signal.SIGXCPU)
            and child.cpu_s() - self.cpu_before >= self.limits.cpu_s
        ):
            return "timeout_cpu"
        grown_mb = child.max_rss_mb() - self.rss_before_mb
        return "oom" if -code == signal.SIGKILL and grown_mb >= self.limits.memory_mb / 2 else "crashed"
