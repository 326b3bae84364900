"""Landlock: which files a process may touch, decided by itself, for good (Linux 5.13 and newer)."""

from __future__ import annotations

import os
import struct

from torl.sandbox.inside import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15  # since ABI 2, 3, 5
FIRST_ABI = (1 << 13) - 1  # all that ABI 1 knows
ALL_NET, ALL_SCOPES = 3, 3  # since ABI 4: bind and connect; since 6: abstract sockets, signals
VERSION = 1  # flag of landlock_create_ruleset: only tell the ABI
PATH_BENEATH = 1


def abi() -> int:
    """The version that the kernel speaks; 0 for none."""
    try:
        return kernel.call("landlock_create_ruleset", None, 0, VERSION)
    except OSError:
        return 0


class Ruleset:
    """Files and folders that may be read, devices that may be written too, and nothing else.

    Made ahead of the forks; paths that do not exist are left out. ``max_abi`` keeps to what an
    older kernel has. Raises OSError where there is no Landlock.
    """

    def __init__(self, read: Sequence[str], write: Sequence[str], max_abi: int = 99) -> None:
        version = min(abi(), max_abi)
        if version < 1:
            raise OSError(38, "landlock_create_ruleset: the kernel has no Landlock, or has it switched off")
        self._files = FIRST_ABI
        for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
            if version >= since:
                self._files |= right
        handled = [self._files]
        if version >= 4:
            handled.append(ALL_NET)
        if version >= 6:
            handled.append(ALL_SCOPES)
        self._attributes = struct.pack(f"={len(handled)}Q", *handled)
        self._rules = [rule for path in read for rule in _rule(path, READ_FILE, READ_DIR)]
        self._rules += [rule for path in write for rule in _rule(path, READ_FILE | WRITE_FILE, 0)]

    def restrict(self, scratch: str | None) -> None:
        """Binds the calling process to it, and lets it do as it likes below ``scratch``, except to
        run programs and to make devices. Needs no_new_privileges."""
        ruleset = kernel.call("landlock_create_ruleset", self._attributes, len(self._attributes), 0)
        try:
            for rights, descriptor in self._rules:
                _add(ruleset, rights, descriptor)
            if scratch is not None:
                folder = os.open(scratch, os.O_PATH | os.O_CLOEXEC)
                _add(ruleset, self._files & ~(EXECUTE | MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV), folder)
                os.close(folder)
            kernel.call("landlock_restrict_self", ruleset, 0)
        finally:
            os.close(ruleset)


def _rule(path: str, file_rights: int, folder_rights: int) -> list[tuple[int, int]]:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return []
    return [(file_rights | (folder_rights if os.path.isdir(path) else 0), descriptor)]


def _add(ruleset: int, rights: int, descriptor: int) -> None:
    kernel.call("landlock_add_rule", ruleset, PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
