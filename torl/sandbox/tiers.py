"""How much isolation this machine can give, strongest first, and how that is found out.

No single call tells: a kernel may grant a user namespace and then refuse what it is for. So
each plan is carried out in full, and a child under it tries to break out (probes.py).
"""

import os
from dataclasses import dataclass
from typing import Literal

from torl.sandbox.types import Tier

FIRST_USER = 64500  # of the users, one a slot, that a sandbox started by root gives its children
EVERY_ABI = 99  # Landlock: whatever the kernel has

MEANING: dict[Tier, str] = {
    "A": "all layers: own file tree, processes, network and user; Landlock; system-call filter",
    "B": "Landlock and system-call filter; no namespaces, so no scratch directory",
    "C": "namespaces and system-call filter; no Landlock",
    "D": "system-call filter only; no file can be opened",
    "unsafe": "limits only: the code may do whatever this user may",
}


@dataclass(frozen=True)
class Plan:
    """The layers of one way to run a child. The zygote gets it as JSON."""

    tier: Tier
    namespaces: Literal["root", "user", ""] = ""
    landlock: int = 0  # the highest ABI to use; 0: none
    uid: int = 0  # of slot 0; 0: the child keeps this user
    reads_as_root: bool = False  # it keeps root's eyes, where Python lies in root's own folder
    files: Literal["scratch", "read", "none", ""] = ""  # what the system-call filter lets through

    @property
    def layers(self) -> str:
        """In words, for people."""
        names = {
            "namespaces": self.namespaces and f"namespaces as {self.namespaces}",
            "landlock": self.landlock and "Landlock",
            "uid": self.uid and ("a user of its own" if not self.reads_as_root else "root without powers"),
            "files": self.files and f"seccomp ({self.files})",
        }
        return " + ".join(str(name) for name in names.values() if name) or "limits only"


def plans(tier: Tier | Literal["auto"], *, landlock_abi: int = EVERY_ABI) -> list[Plan]:
    """What to try, in this order. ``landlock_abi`` is for tests that want an older kernel's."""
    root = os.geteuid() == 0
    users = [(FIRST_USER, False), (FIRST_USER, True)] if root else [(0, False)]
    spaces: list[tuple[Literal["root", "user"], int]] = [("user", 0)]
    if root:
        spaces.insert(0, ("root", FIRST_USER))
    found: list[Plan] = []
    for name, uid in spaces:
        found.append(Plan("A", name, landlock_abi, uid, files="scratch"))
    found += [Plan("B", "", landlock_abi, uid, reads, "read") for uid, reads in users]
    found += [Plan("C", name, 0, uid, files="scratch") for name, uid in spaces]
    found += [Plan("D", "", 0, uid, reads, "none") for uid, reads in users]
    if tier == "unsafe":
        return [Plan("unsafe")]
    return found if tier == "auto" else [plan for plan in found if plan.tier == tier]
