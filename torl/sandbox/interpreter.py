"""Which Python runs the snippets, with which flags and environment."""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from torl.errors import SandboxFault

RUNNER = str(Path(__file__).with_name("runner.py"))
# Isolated as by -I, but the environment below is clean and its hash seed must count; and
# without site (-S): one .pth file of a tool environment can cost more than the interpreter.
FLAGS = ["-s", "-S", "-P", "-B", "-X", "utf8"]
START_S = 30.0  # for an interpreter to start, on a busy machine


@dataclass(frozen=True)
class Interpreter:
    """A Python, and its sys.path joined by os.pathsep."""

    executable: str
    path: str

    def command(self, *arguments: object) -> list[str]:
        """The command line that starts the runner."""
        return [self.executable, *FLAGS, RUNNER, *map(str, arguments), self.path]


def find_interpreter(executable: str) -> Interpreter:
    """Asks a Python (3.11 or newer) for its sys.path. Raises SandboxFault when it cannot run."""
    ask = "import os, sys; print(os.pathsep.join(sys.path))"
    command = [executable, *(flag for flag in FLAGS if flag != "-S"), "-c", ask]
    try:
        done = subprocess.run(
            command, env=environment("/"), capture_output=True, text=True, timeout=START_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxFault(f"the sandbox's interpreter {executable} does not run: {error}") from error
    if done.returncode != 0:
        raise SandboxFault(f"the sandbox's interpreter {executable} does not run: {done.stderr.strip()}")
    return Interpreter(executable, done.stdout.strip())


def environment(home: str) -> dict[str, str]:
    """All the environment that a snippet sees. Nothing is inherited."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",  # each arena would take 64 MB of the address space
    }


class TaskCount:
    """Processes and threads of this user, which the kernel counts against RLIMIT_NPROC.

    Counted anew when the last count is older than 10 s: the walk costs about 1 ms.
    """

    def __init__(self) -> None:
        self._count, self._at = 0, -float("inf")

    def __call__(self) -> int:
        if os.geteuid() != 0 and time.monotonic() - self._at > 10.0:  # root has no such limit
            self._count = sum(_tasks(pid) for pid in os.listdir("/proc") if pid.isdigit())
            self._at = time.monotonic()
        return self._count


def _tasks(pid: str) -> int:
    try:
        tasks = os.stat(f"/proc/{pid}/task")
    except OSError:  # gone, or hidden from us
        return 0
    return tasks.st_nlink - 2 if tasks.st_uid == os.geteuid() else 0
