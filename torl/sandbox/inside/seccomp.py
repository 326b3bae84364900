"""The filter of system calls: an allow-list, enforced by the kernel until the process ends.

A call is decided by its number and, for a few, by an argument. Arguments of 32 bits (a process
number, an ioctl request) are compared by their low half: the kernel reads no more of them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

from torl.sandbox.inside import kernel
from torl.sandbox.inside.syscalls import AUDIT_ARCH, numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant

ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
X32 = 0x40000000  # the bit that marks x86-64's other numbers
SET_MODE_FILTER, SPEC_ALLOW = 1, 4

CLONE_THREAD = 0x10000
NEW_NAMESPACES = 0x7E020080  # user, mount, process, network, IPC, host name, cgroup, time
# Names of threads and of mappings, and questions about itself. Not, above all, a new
# PR_SET_PDEATHSIG: it would let a child outlive its zygote.
PRCTL_ALLOWED = (3, 15, 16, 23, 30, 39, 0x53564D41)
FCNTL_REFUSED = (8, 10, 15, 1024, 1026)  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX; not TIOCSTI, which types on a terminal.
IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
AF_UNIX = 1

ANYWAY = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 close close_range lseek fstat
fstatfs getcwd fchdir getdents getdents64 dup dup2 dup3 pipe pipe2 umask mmap mprotect munmap
mremap madvise brk msync mincore membarrier rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending
rt_sigtimedwait rt_sigsuspend sigaltstack poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl
epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 timerfd_create timerfd_settime timerfd_gettime
nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getrusage sysinfo uname
getpid getppid gettid getpgrp getpgid getsid getuid geteuid getgid getegid getresuid getresgid getgroups
getpriority getcpu capget getrlimit getrandom futex futex_wait futex_wake futex_waitv set_robust_list
get_robust_list set_tid_address rseq arch_prctl sched_yield sched_getaffinity sched_getparam
sched_getscheduler sched_getattr sched_rr_get_interval sched_get_priority_max sched_get_priority_min exit
exit_group wait4 waitid alarm setitimer getitimer pause restart_syscall timer_create timer_settime
timer_gettime timer_delete timer_getoverrun flock fsync fdatasync fadvise64 readahead sync_file_range
ftruncate copy_file_range sendfile recvfrom recvmsg shutdown getsockopt getsockname getpeername
""".split()
# What asks about files by their path; what opens them; what changes folders or a file's metadata.
LOOK = "stat lstat newfstatat statx statfs access faccessat faccessat2 readlink readlinkat chdir".split()
OPEN = ["open", "openat", "creat"]
CHANGE = """
mkdir mkdirat unlink unlinkat rmdir rename renameat renameat2 link linkat symlink symlinkat truncate chmod
fchmod fchmodat fchmodat2 fallocate utimensat utime utimes futimesat
""".split()
# openat2 hides its flags behind a pointer; libraries fall back to openat, as on an old kernel.
ABSENT = ["openat2", "clone3"]
# Options of sockets could enlarge their buffers, which are memory outside the limit.
SOCKETS = "socket connect bind listen accept accept4 sendmsg sendmmsg recvmmsg setsockopt".split()
REFUSED = """
fork vfork execve execveat ptrace process_vm_readv process_vm_writev kcmp mount umount2 pivot_root chroot
unshare setns open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr statmount
listmount setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid capset setpgid
setsid setpriority sched_setaffinity sched_setscheduler sched_setparam sched_setattr ioprio_set ioprio_get
setrlimit pidfd_open pidfd_getfd pidfd_send_signal tkill rt_sigqueueinfo rt_tgsigqueueinfo process_madvise
process_mrelease signalfd signalfd4 keyctl add_key request_key bpf perf_event_open userfaultfd
io_uring_setup io_uring_enter io_uring_register io_setup io_destroy io_submit io_cancel io_getevents
io_pgetevents memfd_create memfd_secret remap_file_pages shmget shmat shmctl shmdt semget semop semctl
semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify
mq_getsetattr mlock mlock2 mlockall munlock munlockall mbind set_mempolicy get_mempolicy
set_mempolicy_home_node migrate_pages move_pages mseal map_shadow_stack pkey_mprotect pkey_alloc pkey_free
name_to_handle_at open_by_handle_at fanotify_init fanotify_mark inotify_init inotify_init1
inotify_add_watch inotify_rm_watch mknod mknodat chown fchown lchown fchownat sync syncfs splice vmsplice
tee cachestat setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
getxattr lgetxattr fgetxattr getxattrat listxattr llistxattr flistxattr listxattrat file_getattr
file_setattr init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff
sethostname setdomainname settimeofday clock_settime adjtimex clock_adjtime acct quotactl quotactl_fd
syslog iopl ioperm modify_ldt personality vhangup lookup_dcookie nfsservctl set_thread_area
get_thread_area futex_requeue landlock_create_ruleset landlock_add_rule landlock_restrict_self seccomp
lsm_get_self_attr lsm_set_self_attr lsm_list_modules
""".split()


class _Filter(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_ushort),
        ("jt", ctypes.c_ubyte),
        ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(_Filter))]


class Program:
    """Instructions of the kernel's classic packet filter, from top to bottom."""

    def __init__(self, machine: str = "") -> None:
        """Starts with what every filter needs: other architectures' and x32's numbers kill."""
        self._numbers = numbers(machine)
        name = machine or platform.machine()
        self.instructions: list[Instruction] = [
            (LOAD, 0, 0, ARCHITECTURE),
            (EQUAL, 1, 0, AUDIT_ARCH[name]),
            (RETURN, 0, 0, KILL),
            (LOAD, 0, 0, NUMBER),
        ]
        if name == "x86_64":
            self.instructions += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]

    def decide(self, names: Iterable[str], verdict: int) -> None:
        """Calls of these names get the verdict; names that this machine lacks are passed over."""
        for name in names:
            self.when(name, [(RETURN, 0, 0, verdict)])

    def when(self, name: str, body: list[Instruction]) -> None:
        """Calls of this name run ``body``, which returns on every path."""
        if name in self._numbers:
            self.instructions.append((EQUAL, 0, len(body), self._numbers[name]))
            self.instructions += body

    def close(self, verdict: int) -> None:
        """The verdict of all others."""
        self.instructions.append((RETURN, 0, 0, verdict))

    def assemble(self) -> ctypes.Array[_Filter]:
        """The instructions as the kernel reads them."""
        return (_Filter * len(self.instructions))(*[_Filter(*i) for i in self.instructions])

    def install(self) -> None:
        """Binds the calling thread, for good. Needs no_new_privileges. Raises OSError."""
        _install(self.assemble())


def _install(instructions: ctypes.Array[_Filter]) -> None:
    program = _Program(len(instructions), instructions)
    kernel.call("seccomp", SET_MODE_FILTER, SPEC_ALLOW, ctypes.byref(program))


class Filter:
    """The child's filter. ``files`` says what may be done with files:

    - "scratch": anything; Landlock or the mount namespace bounds where.
    - "read": open them (Landlock bounds which). Nothing that Landlock does not mediate: modes,
      times, and folders are not changed.
    - "none": nothing by a path at all.
    """

    def __init__(self, files: Literal["scratch", "read", "none"], machine: str = "") -> None:
        self._program = Program(machine)
        self._own: list[int] = []  # places of instructions that compare with the process' own number
        self._files(files)
        self._program.decide(ANYWAY, ALLOW)
        self._by_argument()
        self._program.decide(ABSENT, ERRNO | errno.ENOSYS)
        self._program.decide(SOCKETS, ERRNO | errno.EACCES)
        self._program.decide(REFUSED, ERRNO | errno.EPERM)
        self._program.close(ERRNO | errno.ENOSYS)  # what is newer than this list
        self._assembled = self._program.assemble()  # here, not in every child

    def install(self) -> None:
        """Binds the calling thread, for good. Needs no_new_privileges. Raises OSError."""
        pid = os.getpid()
        for place in self._own:
            self._assembled[place].k = pid
        _install(self._assembled)

    def instructions(self, pid: int) -> list[Instruction]:
        """What is installed in the process of this number."""
        found = list(self._program.instructions)
        for place in self._own:
            found[place] = (*found[place][:3], pid)
        return found

    def _files(self, files: str) -> None:
        decide = self._program.decide
        decide(LOOK, ERRNO | errno.ENOENT if files == "none" else ALLOW)
        decide(OPEN, ERRNO | errno.EACCES if files == "none" else ALLOW)
        decide(CHANGE, ALLOW if files == "scratch" else ERRNO | errno.EROFS)

    def _by_argument(self) -> None:
        when, refuse = self._program.when, (RETURN, 0, 0, ERRNO | errno.EPERM)
        allow = (RETURN, 0, 0, ALLOW)
        threads_only = [
            _load(0),
            (ANY_BIT, 1, 0, NEW_NAMESPACES),
            (ANY_BIT, 1, 0, CLONE_THREAD),
            refuse,
            allow,
        ]
        when("clone", threads_only)
        for name in ("kill", "tgkill"):
            self._on_itself(name, also_zero=False)
        self._on_itself("prlimit64", also_zero=True)
        when("prctl", _one_of(0, PRCTL_ALLOWED, allow, refuse))
        when("fcntl", _one_of(1, FCNTL_REFUSED, refuse, allow))
        when("ioctl", _one_of(1, IOCTL_ALLOWED, allow, (RETURN, 0, 0, ERRNO | errno.ENOTTY)))
        when("socketpair", _one_of(0, (AF_UNIX,), allow, (RETURN, 0, 0, ERRNO | errno.EACCES)))
        # An end of a pair of datagram sockets could send to any socket of the host that has a path.
        nowhere = [_load(4), (EQUAL, 0, 2, 0), _load(4, high=True), (EQUAL, 1, 0, 0)]
        when("sendto", [*nowhere, (RETURN, 0, 0, ERRNO | errno.EACCES), allow])

    def _on_itself(self, name: str, *, also_zero: bool) -> None:
        """The first argument must be the process' own number."""
        start = len(self._program.instructions)
        accepted = (0, 0) if also_zero else (0,)
        body = _one_of(0, accepted, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | errno.EPERM))
        self._program.when(name, body)
        if len(self._program.instructions) > start:
            self._own.append(start + 2)  # behind the comparison of the name, and the load


def _load(argument: int, *, high: bool = False) -> Instruction:
    """The low (or the high) half of an argument."""
    return (LOAD, 0, 0, ARGUMENTS + 8 * argument + 4 * high)


def _one_of(
    argument: int, values: tuple[int, ...], then: Instruction, otherwise: Instruction
) -> list[Instruction]:
    """``then`` when the argument's low half is one of the values."""
    tests = [(EQUAL, len(values) - n, 0, value & 0xFFFFFFFF) for n, value in enumerate(values)]
    return [_load(argument), *tests, otherwise, then]
