"""Which Python runs the code, what of the host's files it needs, and its environment."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from torl.errors import UserError

BOOT = str(Path(__file__).with_name("inside") / "boot.py")
# Isolated as by -I, but the environment below is clean and its hash seed must count; and
# without site (-S): one .pth file of a tool environment can cost more than the interpreter.
FLAGS = ["-s", "-S", "-P", "-B", "-X", "utf8"]
START_S = 60.0  # for an interpreter to start and to import its packages, on a busy machine

ASK = """
import json, site, sys, sysconfig
print(json.dumps({
    "version": sys.version_info[:2],
    "path": sys.path,
    "prefixes": sorted({sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}),
    "sites": site.getsitepackages(),
}))
"""
SYSTEM = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime")


@dataclass(frozen=True)
class Interpreter:
    """A Python: its sys.path, and the files and folders of the host that it reads."""

    executable: str
    path: list[str]
    read: list[str]

    def command(self, config: dict[str, object]) -> list[str]:
        """The command line that starts a zygote."""
        here = str(Path(BOOT).parents[1])
        return [self.executable, *FLAGS, BOOT, here, json.dumps(config)]


def find_interpreter(executable: str) -> Interpreter:
    """Asks a Python (3.11 or newer) where its libraries are. Raises UserError when it cannot run.

    Folders that a .pth file adds (an editable install) are left out: they are somebody's
    project, and may hold the answers to the tasks.
    """
    command = [executable, *(flag for flag in FLAGS if flag != "-S"), "-c", ASK]
    try:
        done = subprocess.run(
            command,
            env=environment(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"sandbox.python={executable} does not run: {error}") from error
    if done.returncode != 0:
        raise UserError(f"sandbox.python={executable} does not run: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout)
    if found["version"] < [3, 11]:
        raise UserError(
            f"sandbox.python={executable} is Python {found['version'][0]}.{found['version'][1]}; "
            "3.11 or newer is needed"
        )
    libraries = [f"{prefix}/{lib}" for prefix in found["prefixes"] for lib in ("lib", "lib64")]
    roots = [*libraries, *found["sites"], *SYSTEM]
    path = [entry for entry in found["path"] if any(_within(entry, root) for root in roots)]
    return Interpreter(executable, path, _outermost([*roots, *SYSTEM_FILES]))


def _within(path: str, root: str) -> bool:
    return f"{path}/".startswith(f"{root.rstrip('/')}/")


def _outermost(paths: list[str]) -> list[str]:
    """Those that exist, links followed, without those inside another."""
    real = sorted({os.path.realpath(path) for path in paths if os.path.exists(path)}, key=len)
    kept: list[str] = []
    for path in real:
        if not any(_within(path, other) for other in kept):
            kept.append(path)
    return kept


def environment(home: str = "/box") -> dict[str, str]:
    """All the environment that code sees. Nothing is inherited."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "NUMEXPR_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",  # each arena would take 64 MB of the address space
    }
