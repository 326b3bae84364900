"""Linux, as far as the sandbox needs it and Python does not offer it. Every failure is an OSError."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct

from torl.sandbox.inside.syscalls import numbers

NEWNS, NEWUTS, NEWIPC = 0x20000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000

MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63
PROT_READ_WRITE, MAP_SHARED = 3, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]


def call(name: str, *arguments: object) -> int:
    """A system call by its name; ints are passed as longs, bytes as pointers, None as a null one.

    Raises OSError naming the call.
    """
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(name, _libc.syscall(ctypes.c_long(numbers()[name]), *converted))


def _checked(name: str, result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def unshare(kinds: int) -> None:
    """Moves this process into new namespaces (for NEWPID: its next children)."""
    call("unshare", kinds)


def mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    try:
        call("mount", texts[0], texts[1], texts[2], flags, texts[3])
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (on {target})") from None


def bind(source: str, target: str) -> None:
    """Lets a file or folder, with all that is mounted in it, appear at ``target`` as well."""
    mount(source, target, None, MS_BIND | MS_REC)


def read_only(path: str, *, devices: bool = False) -> None:
    """Makes a mount, and all below it, read-only and without set-user-id programs or devices."""
    wanted = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | (0 if devices else MOUNT_ATTR_NODEV)
    attributes = struct.pack("=QQQQ", wanted, 0, 0, 0)
    call("mount_setattr", AT_FDCWD, os.fsencode(path), AT_RECURSIVE, attributes, len(attributes))


def remount_read_only(path: str) -> None:
    """The same for one mount alone: what is mounted below it keeps its own flags."""
    mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def pivot_into(root: str) -> None:
    """Makes ``root`` the root of this mount namespace; nothing of the old one stays reachable."""
    os.chdir(root)
    call("pivot_root", b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def write_id_maps(proc: int, uid: int, gid: int) -> None:
    """Says who this process is in its new user namespace: the same as outside.

    ``proc``: a descriptor of /proc, which need not be visible any more.
    """
    maps = (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1\n"), ("gid_map", f"{gid} {gid} 1\n"))
    for name, text in maps:
        descriptor = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def drop_capabilities() -> None:
    """Gives up all capabilities, and, where it may, the bounding set, so that none comes back."""
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)  # refused by old kernels only
    for capability in range(LAST_CAPABILITY + 1):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # not permitted, or the last one was there
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    call("capset", header, struct.pack("=6I", 0, 0, 0, 0, 0, 0))


def no_new_privileges() -> None:
    """From here on, no program that is run gains any. Needed for Landlock and seccomp."""
    _checked("prctl(PR_SET_NO_NEW_PRIVS)", _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent's thread ends. A change of user forgets it.

    ``parent`` is its number as seen from here (0: outside this namespace). Exits when it has ended
    already.
    """
    _checked("prctl(PR_SET_PDEATHSIG)", _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)


def map_shared(descriptor: int, size: int) -> int:
    """The address of a file's first bytes, mapped to read and write, for as long as this lives."""
    address = _libc.mmap(None, size, PROT_READ_WRITE, MAP_SHARED, descriptor, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, f"mmap: {os.strerror(error)}")
    return int(address)


def store(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


def limit(kind: int, soft: int, hard: int) -> None:
    """Sets a limit, or keeps the inherited one where that is lower."""
    inherited = resource.getrlimit(kind)[1]
    if inherited != resource.RLIM_INFINITY:
        soft, hard = min(soft, inherited), min(hard, inherited)
    resource.setrlimit(kind, (soft, hard))


def tasks_of_user(proc: int) -> int:
    """Processes and threads of this user, which the kernel counts together against RLIMIT_NPROC."""
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    found = 0
    try:
        for pid in filter(str.isdigit, os.listdir(folder)):
            try:
                tasks = os.stat(f"{pid}/task", dir_fd=folder)
            except OSError:  # gone, or hidden from us
                continue
            found += tasks.st_nlink - 2 if tasks.st_uid == os.geteuid() else 0
    finally:
        os.close(folder)
    return found


def memory(proc: int) -> tuple[int, int]:
    """Bytes of address space, and of resident memory, that this process has now.

    ``proc``: a descriptor of /proc.
    """
    descriptor = os.open("self/statm", os.O_RDONLY, dir_fd=proc)
    try:
        size, resident, *_ = os.read(descriptor, 200).split()
        return int(size) * resource.getpagesize(), int(resident) * resource.getpagesize()
    finally:
        os.close(descriptor)
