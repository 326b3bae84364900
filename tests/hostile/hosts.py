"""Machines that a sandbox may meet, each emulated by what a process takes from itself first.

    python -m tests.hostile.hosts SITUATION [PATTERN]

runs the catalogue (the cases whose names match) in a situation, and prints a line of JSON for
each case; before them one that says which tier was had, or why the situation cannot be made here.
"""

import asyncio
import ctypes
import errno
import json
import os
import re
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torl.sandbox import Sandbox
from torl.sandbox.inside import kernel, landlock
from torl.sandbox.inside.seccomp import (
    ALLOW,
    ANY_BIT,
    ARGUMENTS,
    ERRNO,
    LOAD,
    NEW_NAMESPACES,
    RETURN,
    Program,
)
from torl.sandbox.tiers import EVERY_ABI

from .case import Case
from .catalogue import CASES, CONTROLS
from .sweep import USUAL, Sweep, possible
from .world import World

ROOT = Path(__file__).parents[2]
USER = 60000 + os.getpid() % 4000  # nobody's number: two runs do not meet
NAMESPACES = ["unshare", "setns"]
LANDLOCK = ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"]
# What a container of Docker's may not do without CAP_SYS_ADMIN, and what it may as root.
CONTAINER = """
unshare setns mount umount2 pivot_root mount_setattr open_tree move_mount fsopen fsconfig fsmount fspick
keyctl add_key request_key bpf perf_event_open userfaultfd ptrace process_vm_readv process_vm_writev kcmp
open_by_handle_at name_to_handle_at fanotify_init lookup_dcookie quotactl syslog sethostname setdomainname
reboot swapon swapoff acct init_module finit_module delete_module kexec_load iopl ioperm io_uring_setup
io_uring_enter io_uring_register mbind move_pages migrate_pages set_mempolicy clock_settime settimeofday
vhangup
""".split()
CONTAINER_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
LAST_CAPABILITY = 63
TRAINER_THREADS = 100  # as torch has: a limit that counts all of a user must bear them


@dataclass(frozen=True)
class Situation:
    """``needs``: root, user_ns (an ordinary user may make namespaces), landlock."""

    tier: str
    needs: str
    user: bool = False  # root becomes an ordinary user
    no_landlock: bool = False
    no_namespaces: bool = False
    container: bool = False  # as Docker's are
    landlock_abi: int = EVERY_ABI
    reach: bool = True  # lets other users read this Python, as they can read most
    sections: str = "ABCDEFG"  # of the catalogue
    wanted: str = "auto"


OFTEN = "ACDEF"  # output and ordinary programs differ by the tier at most
SITUATIONS = {
    "root": Situation("A", "root namespaces landlock", reach=False),
    "user": Situation("A", "namespaces landlock", user=True, sections=OFTEN),
    "user-no-namespaces": Situation("B", "landlock", user=True, no_namespaces=True),
    "user-landlock-1": Situation(
        "B", "landlock", user=True, no_namespaces=True, landlock_abi=1, sections=OFTEN
    ),
    "container": Situation("B", "root landlock", container=True, sections=OFTEN),
    "container-private-python": Situation(
        "B", "root landlock", container=True, reach=False, sections=OFTEN
    ),
    "no-landlock": Situation("C", "namespaces", no_landlock=True, reach=False),
    "seccomp-only": Situation("D", "", user=True, no_namespaces=True, no_landlock=True),
}
CONTROL = Situation("unsafe", "", user=True, wanted="unsafe")


def main(name: str, pattern: str, stage: str) -> None:
    situation = SITUATIONS.get(name, CONTROL)
    if stage == "inside":
        asyncio.run(_sweep(situation, pattern))
        return
    why = lacking(situation)
    if why:
        print(json.dumps({"skip": why}))
        return
    restrict(situation)
    # A new image: a process that changed its user cannot be looked into until then.
    os.execv(sys.executable, [sys.executable, "-m", __spec__.name, name, pattern, "inside"])


def lacking(situation: Situation) -> str:
    """What this machine lacks for the situation; empty when nothing."""
    root = os.geteuid() == 0
    if "root" in situation.needs.split() and not root:
        return "only root can be root"
    if "landlock" in situation.needs and not landlock.abi():
        return "this kernel has no Landlock"
    if "namespaces" in situation.needs and not _succeeds(lambda: _try_namespaces(situation.user and root)):
        return "no namespaces can be made here"
    if situation.user and root and _closed_folders() and not _succeeds(_reach):
        return "an ordinary user cannot read this Python here, nor can it be shown to one"
    return ""


def restrict(situation: Situation) -> None:
    """Takes from this process what the situation lacks."""
    root = os.geteuid() == 0
    if root and situation.reach:
        _reach()
    names = [(NAMESPACES, errno.EPERM)] if situation.no_namespaces else []
    names += [(LANDLOCK, errno.ENOSYS)] if situation.no_landlock else []
    names += [(CONTAINER, errno.EPERM)] if situation.container else []
    if names:
        if not root:
            kernel.no_new_privileges()
        _refuse(names, clone=situation.no_namespaces or situation.container)
    if situation.container:
        _keep_capabilities(CONTAINER_CAPABILITIES)
    if situation.user and root:
        _become_user()


def _refuse(names: Iterable[tuple[list[str], int]], *, clone: bool) -> None:
    program = Program()
    for calls, error in names:
        program.decide(calls, ERRNO | error)
    if clone:
        program.decide(["clone3"], ERRNO | errno.ENOSYS)
        refuse = (RETURN, 0, 0, ERRNO | errno.EPERM)
        program.when(
            "clone",
            [(LOAD, 0, 0, ARGUMENTS), (ANY_BIT, 0, 1, NEW_NAMESPACES), refuse, (RETURN, 0, 0, ALLOW)],
        )
    program.close(ALLOW)
    program.install()


def _keep_capabilities(kept: tuple[int, ...]) -> None:
    libc = ctypes.CDLL(None)
    for capability in set(range(LAST_CAPABILITY + 1)) - set(kept):
        libc.prctl(kernel.PR_CAPBSET_DROP, capability, 0, 0, 0)
    mask = sum(1 << capability for capability in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("=Ii", kernel.CAPABILITY_VERSION_3, 0)
    kernel.call("capset", header, struct.pack("=6I", low, low, 0, high, high, 0))


def _become_user() -> None:
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)


def _try_namespaces(as_user: bool) -> None:
    if as_user:
        _become_user()
    kernel.unshare(kernel.NEWNS | kernel.NEWPID | (0 if os.geteuid() == 0 else kernel.NEWUSER))
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    kernel.mount("try", "/tmp", "tmpfs", 0)


def _succeeds(attempt: Callable[[], None]) -> bool:
    """In a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _closed_folders() -> dict[Path, list[Path]]:
    """Folders that other users cannot enter, and what of Python and of torl lies in each."""
    found: dict[Path, list[Path]] = {}
    for needed in {Path(p).resolve() for p in (sys.prefix, sys.base_prefix, ROOT)}:
        for folder in [*reversed(needed.parents), needed]:
            if not folder.stat().st_mode & stat.S_IXOTH:
                found.setdefault(folder, []).append(needed)
                break
    return found


def _reach() -> None:
    """Shows them, in a mount namespace of this process, with parents that can be entered."""
    closed = _closed_folders()
    if not closed:
        return
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    for folder, inside in closed.items():
        held = {path: os.open(path, os.O_PATH) for path in inside}
        kernel.mount("reach", str(folder), "tmpfs", 0, "mode=0755")
        for path, descriptor in held.items():
            path.mkdir(parents=True, exist_ok=True)
            kernel.bind(f"/proc/self/fd/{descriptor}", str(path))
            os.close(descriptor)


def cases_of(situation: Situation) -> dict[str, Case]:
    """What is run in a situation, by name."""
    if situation.wanted == "unsafe":
        return CONTROLS
    return {name: case for name, case in CASES.items() if case.section in situation.sections}


async def _sweep(situation: Situation, pattern: str) -> None:
    cases = cases_of(situation)
    # The number of processes is the only limit that might stand in for a layer.
    limits = replace(USUAL, processes=10_000) if situation is CONTROL else USUAL
    box = Sandbox(limits, tier=situation.wanted, _landlock_abi=situation.landlock_abi)
    for _ in range(TRAINER_THREADS):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    async with box:
        report = await box.start()
        _print({"tier": report.tier, "layers": report.layers, "wanted": situation.tier})
        with World() as world:
            chosen = [case for case in cases.values() if re.search(pattern, case.id)]
            for case in chosen:
                if not possible(case):
                    _print({"case": case.id, "skip": f"needs {case.needs or case.machine}"})
            sweep = Sweep(box, world, report.tier)
            async for case, result, complaints in sweep.run([c for c in chosen if possible(c)]):
                shown = {k: v[:500] if isinstance(v, str) else v for k, v in asdict(result).items()}
                _print({"case": case.id, "complaints": complaints, "result": shown})


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*[*sys.argv[1:], "", ""][:3])
