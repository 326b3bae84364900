"""What a case of the catalogue is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torl.sandbox import Limits
from torl.sandbox.inside.syscalls import numbers

BUSY: dict[str, Any] = {"cpu_s": 0.1}  # for code that burns processor time until it is killed
ASLEEP: dict[str, Any] = {"timeout_s": 0.4}  # for code that waits until it is killed
TIGHT: dict[str, Any] = {"memory_mb": 64}  # for code that takes all memory it can have

# Code that got what it must not get prints ESCAPED. The tokens are those of world.py.
FORBIDDEN = r"ESCAPED|torl-secret-[0-9a-f]+"
DENIED = r"PermissionError|Operation not permitted|Permission denied|Read-only file system|Function not imp"
GONE = rf"{DENIED}|No such file"


@dataclass(frozen=True)
class Case:
    """One snippet and what must become of it.

    ``code`` may hold the words that World.fill replaces. ``want`` names the statuses that are
    accepted. ``out``, ``err`` and ``value`` are patterns to be found in the result; ``forbidden``
    must not be found in stdout or value. ``tiers`` has what differs there, by letters: {"BD":
    {"want": "error"}}. ``breaks`` is a pattern that is found in stdout, the value or the
    complaints where there is no protection: code that has it is harmless even then.
    """

    name: str
    code: str
    want: str = "ok"
    out: str = ""
    err: str = ""
    value: str = ""
    signal: int = 0  # that ended it; 0: any or none
    exit_code: int | None = None
    forbidden: str = FORBIDDEN
    limits: Mapping[str, Any] = field(default_factory=dict)
    stdin: str = ""
    tiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    breaks: str = ""
    alone: bool = False  # nothing else may be in flight
    needs: str = ""  # packages
    machine: str = ""  # the only architecture that it is for
    section: str = ""

    @property
    def id(self) -> str:
        return f"{self.section}-{self.name}"

    def on(self, tier: str) -> "Case":
        """The case as it is on this tier."""
        changes = [change for letters, change in self.tiers.items() if tier in letters]
        case = self
        for change in changes:
            case = replace(case, **change)
        return case

    def limits_of(self, usual: Limits) -> Limits:
        return replace(usual, **self.limits)


def syscall(name: str, *arguments: str) -> str:
    """Code that makes a system call by its number, and says ESCAPED unless it was refused.

    An error that the call itself gave (EINVAL, EFAULT, EBADF) means that it was reached.
    """
    number = numbers().get(name)
    converted = ", ".join(f"ctypes.c_long({a})" if re.fullmatch(r"-?\w+", a) else a for a in arguments)
    return f"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
got = libc.syscall(ctypes.c_long({number}), {converted})
code = errno.errorcode.get(ctypes.get_errno(), '') if got == -1 else 'none'
refused = code in ('EPERM', 'EACCES', 'ENOSYS', 'EROFS', 'ENOTTY')
print('refused' if refused else 'ESC' + 'APED', got, code)
"""


def attempt(code: str, setup: str = "") -> str:
    """Code that says ESCAPED when it succeeds, and what the exception was when it does not.

    A NameError is a slip in the case, which would pass for a refusal: it ends the code.
    """
    body = "".join(f"    {line}\n" for line in code.strip().splitlines())
    return (
        f"{setup}\ntry:\n{body}    print('ESC' + 'APED')\n"
        "except NameError:\n    raise\nexcept Exception as e:\n    print(type(e).__name__, e)\n"
    )


def refused(name: str, code: str, setup: str = "import os, signal", **more: Any) -> Case:
    """What the code tries must raise. Harmless where it does not: it is aimed at world.py."""
    return Case(name, attempt(code, setup), out="Error", breaks="ESCAPED|host:", alone=True, **more)


def denied(name: str, code: str, setup: str = "import os, signal") -> Case:
    """As above, but without protection it would harm the machine."""
    return Case(name, attempt(code, setup), out="Error")
