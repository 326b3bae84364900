"""One call's process, from the fork to the code: the layers go on, in order, or nothing runs."""

from __future__ import annotations

import json
import os
import resource
import time

from torl.sandbox.inside import kernel, root
from torl.sandbox.inside.page import HEADER
from torl.sandbox.inside.snippet import Notebook, flush

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from torl.sandbox.inside.landlock import Ruleset
    from torl.sandbox.inside.seccomp import Filter

SPARE = 64 << 20  # bytes of address space, for reporting a MemoryError
# Descriptors that outlive the start of the code have numbers that code hardly meets: above its
# limit of open files, so that it cannot be given them.
KEEP_OUT, KEEP_ERR, KEEP_CODE, KEEP_CONTROL = 1000, 1001, 1002, 1003


class Prepared:
    """What the zygote has ready for its children."""

    def __init__(
        self,
        *,
        proc: int,
        namespaces: str,
        uid: int,
        reads_as_root: bool,
        ruleset: Ruleset | None,
        filter: Filter | None,
        zygote: int,
        address_space: int,
    ) -> None:
        self.proc, self.namespaces = proc, namespaces
        self.uid, self.reads_as_root = uid, reads_as_root
        self.ruleset, self.filter = ruleset, filter
        self.zygote, self.address_space = zygote, address_space


class Files:
    """The descriptors that come with a request; ``control`` in a session only."""

    ERR, MOST = 4, 7  # a place in the list, and its length

    def __init__(self, descriptors: list[int]) -> None:
        self.code, self.page, self.stdin, self.out, self.err, self.ready, *more = descriptors
        self.control = more[0] if more else -1


def run(request: dict[str, Any], prepared: Prepared, files: Files) -> NoReturn:
    """Puts the layers on, says so, and runs the cells. Raises when a layer cannot be put on."""
    os.setsid()
    os.dup2(files.stdin, 0)
    if prepared.namespaces:
        _mount_scratch(request, prepared)
    else:
        os.chdir("/")
    cells: list[str] = json.loads(_read(files.code))
    page = Page(files.page, request["page"])
    _drop_user(request, prepared)
    kernel.drop_capabilities()
    kernel.die_with_parent(prepared.zygote)
    kernel.no_new_privileges()
    if prepared.ruleset is not None:
        prepared.ruleset.restrict(root.BOX if prepared.namespaces else None)
    kept = _move_descriptors(files, replay=len(cells) > 1)
    _take_limits(request, prepared)
    if prepared.filter is not None:
        prepared.filter.install()
    os.write(kept.ready, b"R")  # from here on, what happens is the code's doing
    _close_but(kept)
    notebook = Notebook()
    notebook.open()
    for cell in cells[:-1]:
        notebook.run(cell)
    if len(cells) > 1:
        kept.stop_replay()
    _last(notebook, cells[-1], page, kept.control)


class Page:
    """Memory shared with the broker: the last value goes out by it, without a descriptor."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._size = size - HEADER.size
        self._clocks = (0.0, 0.0)
        self._address = kernel.map_shared(descriptor, size)

    def store(self, value: str | None) -> None:
        """Keeps the head and the tail of a value that is too long."""
        data = (value or "").encode("utf-8", "backslashreplace")
        total, tail = len(data), self._size // 4
        if total > self._size:
            data = data[: self._size - tail] + data[total - tail :]
        kernel.store(self._address, HEADER.pack(total, len(data), True, *self._clocks) + data)

    def mark(self) -> None:
        """Says that the earlier cells are done: the clock of the last one starts."""
        self._clocks = (time.process_time(), time.monotonic())
        kernel.store(self._address, HEADER.pack(0, 0, True, *self._clocks))


def _last(notebook: Notebook, cell: str, page: Page, control: int) -> NoReturn:
    page.mark()
    code, value = notebook.run(cell)
    page.store(value)
    while control >= 0:  # a session: the process waits for the trajectory's next cell
        os.write(control, bytes([code]))
        size = int.from_bytes(_exactly(control, 4), "big")
        (cell,) = json.loads(os.pread(KEEP_CODE, size, 0))
        page.mark()
        code, value = notebook.run(cell)
        page.store(value)
    notebook.close(code)
    os._exit(code)


def _exactly(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:  # the session is over
            os._exit(0)
        data += more
    return data


def _mount_scratch(request: dict[str, Any], prepared: Prepared) -> None:
    """A file system in memory, in a mount namespace of the child's own: it ends with the child."""
    kernel.unshare(kernel.NEWNS)
    options = f"size={request['scratch_mb']}m,nr_inodes={request['scratch_files']},mode=0700"
    if prepared.uid:
        user = prepared.uid + request["slot"]
        options += f",uid={user},gid={user}"
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("box", root.BOX, "tmpfs", flags, options)
    os.chdir(root.BOX)


def _drop_user(request: dict[str, Any], prepared: Prepared) -> None:
    """A user of its own, in name or in a namespace: the kernel then counts its threads alone."""
    user = prepared.uid + request["slot"]
    if prepared.uid:
        os.setgroups([])
    if prepared.reads_as_root:
        os.setresuid(user, -1, -1)  # the real user is the one whose threads are counted
    elif prepared.uid:
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    elif prepared.namespaces == "user":
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(kernel.NEWUSER)
        kernel.write_id_maps(prepared.proc, uid, gid)


class _Kept:
    """The few descriptors that stay open while code may run."""

    def __init__(self, ready: int, control: int, out: int, err: int) -> None:
        self.ready, self.control, self.out, self.err = ready, control, out, err

    def stop_replay(self) -> None:
        """From here on, what is printed counts."""
        flush()
        os.dup2(self.out, 1)
        os.dup2(self.err, 2)
        os.close(self.out)
        os.close(self.err)


def _move_descriptors(files: Files, *, replay: bool) -> _Kept:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = KEEP_CONTROL + 1
    if soft < need and (hard >= need or hard == resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    out = err = control = -1
    if replay:
        null = os.open("/dev/null", os.O_WRONLY)
        out, err = os.dup2(files.out, KEEP_OUT), os.dup2(files.err, KEEP_ERR)
        os.dup2(null, 1)
        os.dup2(null, 2)
    else:
        os.dup2(files.out, 1)
        os.dup2(files.err, 2)
    if files.control >= 0:
        control = os.dup2(files.control, KEEP_CONTROL)
        os.dup2(files.code, KEEP_CODE)
    return _Kept(files.ready, control, out, err)


def _close_but(kept: _Kept) -> None:
    start = 3
    code = KEEP_CODE if kept.control >= 0 else -1
    for descriptor in sorted(d for d in (kept.out, kept.err, code, kept.control) if d >= 0):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, 1 << 20)


def _take_limits(request: dict[str, Any], prepared: Prepared) -> None:
    """The kernel's limits. The broker's clocks are finer; these hold when the broker is gone."""
    memory = prepared.address_space + (request["memory_mb"] << 20)
    kernel.limit(resource.RLIMIT_CORE, 0, 0)
    kernel.limit(resource.RLIMIT_FSIZE, request["file_mb"] << 20, request["file_mb"] << 20)
    kernel.limit(resource.RLIMIT_NOFILE, request["descriptors"], request["descriptors"])
    kernel.limit(resource.RLIMIT_NPROC, request["processes"], request["processes"])
    kernel.limit(resource.RLIMIT_MEMLOCK, 0, 0)
    kernel.limit(resource.RLIMIT_MSGQUEUE, 0, 0)
    kernel.limit(resource.RLIMIT_SIGPENDING, 64, 64)
    kernel.limit(resource.RLIMIT_STACK, 8 << 20, 8 << 20)
    kernel.limit(resource.RLIMIT_CPU, request["cpu_s"], request["cpu_s"] + 1)
    kernel.limit(resource.RLIMIT_AS, memory, memory + SPARE)


def _read(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)
