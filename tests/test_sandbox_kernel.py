"""The layers themselves: the filter of system calls, Landlock, and what the kernel is asked for."""

import errno
import os
import re
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torl.sandbox.inside import kernel, landlock, seccomp
from torl.sandbox.inside.seccomp import ALLOW, ERRNO, KILL, Filter, Program
from torl.sandbox.inside.syscalls import AUDIT_ARCH, TABLES, numbers

MACHINES = sorted(TABLES)
MODES = ("scratch", "read", "none")
PID = 4242


def verdict(
    instructions: list[tuple[int, int, int, int]], machine: str, number: int, *arguments: int
) -> int:
    """What the kernel would do: an interpreter of the few instructions that the filter uses."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, AUDIT_ARCH[machine], 0, *padded)
    accumulator, at = 0, 0
    while True:
        code, true, false, constant = instructions[at]
        at += 1
        if code == seccomp.LOAD:
            (accumulator,) = struct.unpack_from("=I", data, constant)
        elif code == seccomp.RETURN:
            return constant
        else:
            holds = {
                seccomp.EQUAL: accumulator == constant,
                seccomp.AT_LEAST: accumulator >= constant,
                seccomp.ANY_BIT: accumulator & constant != 0,
            }[code]
            at += true if holds else false


def decided(name: str, *arguments: int, mode: str = "scratch", machine: str = "x86_64") -> int:
    instructions = Filter(mode, machine).instructions(PID)  # type: ignore[arg-type]
    return verdict(instructions, machine, numbers(machine)[name], *arguments)


def no(number: int) -> int:
    return ERRNO | number


# --- the numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "header", "pattern"),
    [
        ("x86_64", "x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+)\s+(\d+)"),
        ("aarch64", "asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
    ],
)
def test_the_numbers_are_the_kernels(machine: str, header: str, pattern: str) -> None:
    path = Path("/usr/include") / header
    if not path.exists():
        pytest.skip(f"{path} is not here")
    theirs = {name: int(number) for name, number in re.findall(pattern, path.read_text())}
    ours = numbers(machine)
    shared = set(theirs) & set(ours)
    assert len(shared) > 280
    assert {name for name in shared if theirs[name] != ours[name]} == set()


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(OSError, match="mips"):
        numbers("mips")


# --- the filter -----------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_is_decided_on_purpose(machine: str) -> None:
    """What gets the default (as on an older kernel) is obsolete or newer than the list."""
    listed = {
        *seccomp.ANYWAY,
        *seccomp.LOOK,
        *seccomp.OPEN,
        *seccomp.CHANGE,
        *seccomp.ABSENT,
        *seccomp.SOCKETS,
        *seccomp.REFUSED,
        *("clone", "kill", "tgkill", "prlimit64", "prctl", "fcntl", "ioctl", "socketpair", "sendto"),
    }
    obsolete = set(
        "uselib ustat sysfs _sysctl create_module get_kernel_syms query_module getpmsg putpmsg afs_syscall"
        " tuxcall security epoll_ctl_old epoll_wait_old vserver".split()
    )
    assert set(numbers(machine)) - listed <= obsolete
    unknown = listed - set(numbers("x86_64")) - set(numbers("aarch64"))
    assert unknown == set()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("mode", MODES)
@given(st.data())
def test_every_path_ends_in_a_verdict(machine: str, mode: str, data: st.DataObject) -> None:
    instructions = FILTERS[machine, mode]
    number = data.draw(st.one_of(st.integers(0, 600), st.integers(0, 2**32 - 1)))
    arguments = data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=6))
    found = verdict(instructions, machine, number, *arguments)
    assert found in (ALLOW, KILL) or found & 0xFFFF0000 == ERRNO


FILTERS = {
    (machine, mode): Filter(mode, machine).instructions(PID) for machine in MACHINES for mode in MODES
}  # type: ignore[arg-type]


def test_other_architectures_numbers_kill() -> None:
    instructions = Filter("scratch", "x86_64").instructions(PID)
    assert verdict(instructions, "aarch64", 63) == KILL  # i386's int 0x80 comes like that
    assert verdict(instructions, "x86_64", seccomp.X32 + 39) == KILL


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("read", (), ALLOW),
        ("mmap", (), ALLOW),
        ("futex", (), ALLOW),
        ("clone", (0x3D0F00,), ALLOW),  # what pthread_create asks for
        ("clone", (17,), no(errno.EPERM)),  # what fork asks for
        ("clone", (0x10000 | 0x10000000,), no(errno.EPERM)),  # a thread in a new user namespace
        ("clone", (0x10000 | 0x80,), no(errno.EPERM)),
        ("clone3", (), no(errno.ENOSYS)),
        ("openat2", (), no(errno.ENOSYS)),
        ("execve", (), no(errno.EPERM)),
        ("kill", (PID,), ALLOW),
        ("kill", (0,), no(errno.EPERM)),
        ("kill", (2**64 - 1,), no(errno.EPERM)),
        ("kill", (2**32 + PID,), ALLOW),  # the kernel reads the low half only
        ("tgkill", (PID,), ALLOW),
        ("tgkill", (1,), no(errno.EPERM)),
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (PID,), ALLOW),
        ("prlimit64", (1,), no(errno.EPERM)),
        ("prctl", (15,), ALLOW),
        ("prctl", (1,), no(errno.EPERM)),  # PR_SET_PDEATHSIG: it must die with its zygote
        ("prctl", (22,), no(errno.EPERM)),
        ("fcntl", (3, 1), ALLOW),
        ("fcntl", (3, 8), no(errno.EPERM)),  # F_SETOWN: signals to others
        ("fcntl", (3, 15), no(errno.EPERM)),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), no(errno.ENOTTY)),  # TIOCSTI
        ("ioctl", (0, 2**32 + 0x5412), no(errno.ENOTTY)),
        ("socketpair", (1,), ALLOW),
        ("socketpair", (2,), no(errno.EACCES)),
        ("socket", (40,), no(errno.EACCES)),  # AF_VSOCK
        ("sendto", (3, 4096, 1, 0, 0), ALLOW),
        ("sendto", (3, 4096, 1, 0, 4096), no(errno.EACCES)),
        ("sendto", (3, 4096, 1, 0, 2**32), no(errno.EACCES)),
        ("setsockopt", (3, 1, 7), no(errno.EACCES)),
        ("io_uring_setup", (), no(errno.EPERM)),
        ("memfd_create", (), no(errno.EPERM)),
        ("pidfd_send_signal", (), no(errno.EPERM)),
        ("seccomp", (), no(errno.EPERM)),
        ("setxattrat", (), no(errno.EPERM)),
        ("mknodat", (), no(errno.EPERM)),
    ],
)
def test_decisions(machine: str, mode: str, name: str, arguments: tuple[int, ...], expected: int) -> None:
    assert decided(name, *arguments, mode=mode, machine=machine) == expected


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openat", (ALLOW, ALLOW, no(errno.EACCES))),
        ("newfstatat", (ALLOW, ALLOW, no(errno.ENOENT))),
        ("fchmodat", (ALLOW, no(errno.EROFS), no(errno.EROFS))),
        ("fchmodat2", (ALLOW, no(errno.EROFS), no(errno.EROFS))),
        ("utimensat", (ALLOW, no(errno.EROFS), no(errno.EROFS))),
        ("truncate", (ALLOW, no(errno.EROFS), no(errno.EROFS))),
        ("unlinkat", (ALLOW, no(errno.EROFS), no(errno.EROFS))),
    ],
)
def test_decisions_about_files(machine: str, name: str, expected: tuple[int, int, int]) -> None:
    assert tuple(decided(name, mode=mode, machine=machine) for mode in MODES) == expected


# --- the real kernel ------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> None:
    """Runs ``work`` in a process of its own. Raises AssertionError with what it said when it fails."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(sink, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(1)
    os.close(sink)
    _, status = os.waitpid(pid, 0)
    said = os.read(source, 4000).decode()
    os.close(source)
    assert status == 0, said or f"wait status {status}"


def refused(work: Callable[[], object], *codes: int) -> None:
    with pytest.raises(OSError) as caught:
        work()
    assert caught.value.errno in (codes or (errno.EPERM, errno.EACCES))


def become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


@pytest.mark.parametrize("nobody", [False, True])
def test_the_filter_holds(nobody: bool) -> None:
    import socket

    def work() -> None:
        if nobody:
            become_nobody()
        kernel.no_new_privileges()
        Filter("scratch").install()
        refused(socket.socket)
        refused(os.fork)
        refused(lambda: os.kill(os.getppid(), 0))
        refused(lambda: kernel.unshare(kernel.NEWUSER))
        refused(lambda: kernel.call("seccomp", 1, 0, None))
        os.kill(os.getpid(), 0)

    in_child(work)


def test_an_x32_number_kills() -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("x86-64's")

    def work() -> None:
        import ctypes

        kernel.no_new_privileges()
        Filter("scratch").install()
        ctypes.CDLL(None).syscall(seccomp.X32 + 39)

    with pytest.raises(AssertionError, match=f"wait status {int(signal.SIGSYS)}|wait status 159"):
        in_child(work)


def test_a_program_of_ones_own() -> None:
    def work() -> None:
        program = Program()
        program.decide(["mkdir", "mkdirat"], ERRNO | errno.EROFS)
        program.close(ALLOW)
        kernel.no_new_privileges()
        program.install()
        refused(lambda: os.mkdir("/tmp/torl-never"), errno.EROFS)
        os.getppid()

    in_child(work)


@pytest.mark.parametrize("abi", [1, 2, 3, 99])
@pytest.mark.parametrize("nobody", [False, True])
def test_landlock_holds(tmp_path: Path, abi: int, nobody: bool) -> None:
    if landlock.abi() < 1:
        pytest.skip("this kernel has no Landlock")
    scratch = Path("/tmp") / f"torl-landlock-{os.getpid()}-{abi}-{nobody}"
    scratch.mkdir()
    scratch.chmod(0o777)
    (tmp_path / "secret").write_text("42")

    def work() -> None:
        if nobody:
            become_nobody()
        kernel.no_new_privileges()
        ruleset = landlock.Ruleset(["/usr/lib", "/no/such/path"], ["/dev/null"], max_abi=abi)
        ruleset.restrict(str(scratch))
        refused(Path("/etc/passwd").read_text)
        refused((tmp_path / "secret").read_text)
        refused(lambda: os.listdir("/"))
        refused(lambda: Path("/usr/lib/torl").write_text("x"))
        refused(lambda: os.execv("/usr/bin/true", ["true"]))
        os.listdir("/usr/lib")
        Path("/dev/null").write_text("x")
        (scratch / "file").write_text("x")
        (scratch / "file").rename(scratch / "other")
        assert (scratch / "other").read_text() == "x"
        (scratch / "other").unlink()

    try:
        in_child(work)
    finally:
        scratch.rmdir()


def test_capabilities_are_gone() -> None:
    def work() -> None:
        kernel.drop_capabilities()
        lines = Path("/proc/self/status").read_text().splitlines()
        sets = {line.split()[0]: int(line.split()[1], 16) for line in lines if line.startswith("Cap")}
        assert sets["CapEff:"] == sets["CapPrm:"] == sets["CapInh:"] == sets["CapAmb:"] == 0
        if os.geteuid() == 0:
            assert sets["CapBnd:"] == 0

    in_child(work)


def test_a_child_dies_with_its_parent() -> None:
    source, sink = os.pipe()

    def work() -> None:
        me = os.getpid()
        if os.fork() == 0:
            kernel.die_with_parent(me)
            os.write(sink, b"x")
            signal.pause()
        os.read(source, 1)

    in_child(work)
    os.close(sink)
    assert os.read(source, 1) == b""  # the grandchild held the other end until it died
    os.close(source)


def test_failures_name_the_call() -> None:
    with pytest.raises(OSError, match="setns: "):
        kernel.call("setns", -1, 0)
    with pytest.raises(OSError, match=r"mount: .*on /no/such/place"):
        kernel.mount("none", "/no/such/place", "tmpfs", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's")
def test_a_shared_page() -> None:
    descriptor = os.memfd_create("page")
    os.ftruncate(descriptor, 4096)
    kernel.store(kernel.map_shared(descriptor, 4096), b"hello")
    assert os.pread(descriptor, 5, 0) == b"hello"
    os.close(descriptor)
