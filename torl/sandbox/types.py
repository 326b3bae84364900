"""What a call may use, and what comes back of it."""

import os
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "error", "timeout_cpu", "timeout_wall", "oom", "output_limit", "crashed"]


@dataclass(frozen=True)
class Limits:
    """What one call may use. All but ``workers`` are per call.

    Raises ValueError for a limit that is impossible.
    """

    timeout_s: float = 20.0  # wall clock, from the moment the code may start; queueing is not charged
    cpu_s: float = 5.0  # processor time of the process and the children it waited for
    memory_mb: int = 512  # address space, the interpreter's own (about 30 MB) included
    output_kb: int = 64  # kept of each stream, 3/4 of it from the head; the rest is counted
    workers: int = 0  # calls that run at once; 0: one per core
    kill_output_mb: int = 8  # a stream that passes this ends the call
    file_mb: int = 16  # size of any one file that the code writes
    processes: int = 64  # processes and threads; not enforced by the kernel for root
    descriptors: int = 128  # open files

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0 or (value == 0 and name != "workers"):
                raise ValueError(f"Limits.{name}={value} must be positive")
        if self.memory_mb < 64:
            raise ValueError(f"Limits.memory_mb={self.memory_mb} must be at least 64 to start a Python")

    @property
    def slots(self) -> int:
        """Calls that run at once."""
        return self.workers or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Result:
    """What became of one call.

    ``status`` is judged from the wait status, the parent's clock and byte counters, never
    from anything that the code printed:

    - ok: exit code 0; error: any other exit code (an exception, also MemoryError, gives 1);
    - timeout_wall, timeout_cpu: killed at the limit;
    - output_limit: killed because a stream passed ``Limits.kill_output_mb``;
    - oom: killed by the system (not by us) while it held at least half of its memory limit;
    - crashed: ended by another signal, e.g. 11 for a segmentation fault.

    The value of a final expression is the last line of ``stdout``, as in a notebook.
    """

    status: Status
    exit_code: int | None  # the program's own claim; None when a signal ended it
    signal: int | None  # None when it exited by itself
    stdout: str  # invalid UTF-8 is replaced; a note stands where bytes were cut
    stderr: str
    stdout_cut: int  # bytes written but not kept
    stderr_cut: int
    stdout_bytes: int  # bytes written and read until the end, or until the kill
    stderr_bytes: int
    queue_s: float  # waiting for a worker
    run_s: float  # wall clock from the moment the code could start
    cpu_s: float
    max_rss_mb: float  # peak resident memory, as seen by a look every 50 ms
