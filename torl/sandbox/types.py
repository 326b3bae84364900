"""What a call may use, and what comes back of it."""

import os
from dataclasses import dataclass
from typing import Literal

Status = Literal[
    "ok",
    "error",
    "timeout_cpu",
    "timeout_wall",
    "oom",
    "output_limit",
    "crashed",
    "sandbox_error",
]

Tier = Literal["A", "B", "C", "D", "unsafe"]

LEAST_MEMORY_MB = 16


@dataclass(frozen=True)
class Limits:
    """What one call may use. All but ``workers`` are per call.

    Raises ValueError for a limit that is impossible.
    """

    timeout_s: float = 20.0  # wall clock, a backstop for code that waits; queueing is not charged
    cpu_s: float = 5.0  # processor time of all threads: does not depend on how busy the machine is
    memory_mb: int = 512  # address space beyond what the warm interpreter holds already
    output_kb: int = 64  # kept of each stream, 3/4 of it from the head; the rest is counted
    workers: int = 0  # calls that run at once; 0: one per core
    kill_output_mb: int = 8  # a stream that passes this ends the call
    file_mb: int = 16  # size of any one file that the code writes
    scratch_mb: int = 32  # size of all files together (tiers with a scratch directory)
    scratch_files: int = 1024  # their number, directories included
    processes: int = 64  # threads; processes are refused where system calls are filtered
    descriptors: int = 128  # open files
    code_kb: int = 256  # of source; more is a syntax error of the caller's code

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0 or (value == 0 and name != "workers"):
                raise ValueError(f"Limits.{name}={value} must be positive")
        if self.memory_mb < LEAST_MEMORY_MB:
            raise ValueError(f"Limits.memory_mb={self.memory_mb} must be at least {LEAST_MEMORY_MB}")

    @property
    def slots(self) -> int:
        """Calls that run at once."""
        return self.workers or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Result:
    """What became of one call.

    ``status`` is judged from the wait status, the broker's clock and counters, never from
    anything that the code wrote:

    - ok: exit code 0; error: any other exit code (an exception, also MemoryError, gives 1);
    - timeout_wall, timeout_cpu: killed at the limit;
    - output_limit: killed because a stream passed ``Limits.kill_output_mb``;
    - oom: killed by the system (not by us) while it held at least half of its memory limit;
    - crashed: ended by another signal, e.g. 11 for a segmentation fault;
    - sandbox_error: the sandbox, not the code, failed, and did so again when the call was
      retried; ``reason`` says how. The world's fault: nothing may be concluded about the code.
    """

    status: Status
    exit_code: int | None = None  # the program's own claim; None when a signal ended it
    signal: int | None = None  # None when it exited by itself
    stdout: str = ""  # invalid UTF-8 is replaced; a note stands where bytes were cut
    stderr: str = ""
    value: str = ""  # repr of the last expression's value, as a notebook shows it; "" for None
    stdout_cut: int = 0  # bytes written but not kept
    stderr_cut: int = 0
    stdout_bytes: int = 0  # bytes written and read until the end, or until the kill
    stderr_bytes: int = 0
    queue_s: float = 0.0  # waiting for a worker, and for its layers to be put on
    run_s: float = 0.0  # wall clock from the moment the code could start
    cpu_s: float = 0.0
    max_rss_mb: float = 0.0  # peak resident memory, the warm interpreter's pages included
    retries: int = 0  # how often the sandbox failed before it succeeded, or was given up
    reason: str = ""  # of its last failure
    lives: bool = False  # the session's process waits for its next cell
    tier: Tier | None = None  # the layers that it ran under; None when it did not run


@dataclass(frozen=True)
class Report:
    """What a sandbox turned out to be, once it was started and tested."""

    tier: Tier
    layers: str  # in words
    versions: dict[str, str]  # of the packages that were preloaded
    refusals: list[str]  # the stronger plans that do not work here, each with its reason
    python: str
    slots: int  # calls that run at once

    @property
    def packages(self) -> str:
        """What was preloaded, in words."""
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())
