"""C: system calls, by their numbers: whatever a library would refuse to pass on."""

from .case import Case, attempt, syscall

# A call that must be refused before it does anything, by how it would be made.
RAW = {
    "clone": ("17", "0", "0", "0", "0"),
    "clone_vm": ("0x100", "0", "0", "0", "0"),
    "clone3": ("bytes(88)", "88"),
    "execve": ("b'/bin/true'", "0", "0"),
    "execveat": ("-100", "b'/bin/true'", "0", "0", "0"),
    "unshare": ("0x10000000",),
    "setns": ("0", "0"),
    "pidfd_open": ("@TRAINER@", "0"),
    "pidfd_getfd": ("0", "0", "0"),
    "pidfd_send_signal": ("0", "0", "0", "0"),
    "process_vm_readv": ("@PID@", "0", "0", "0", "0", "0"),
    "process_vm_writev": ("@PID@", "0", "0", "0", "0", "0"),
    "process_madvise": ("0", "0", "0", "0", "0"),
    "process_mrelease": ("0", "0"),
    "ptrace": ("16", "@PID@", "0", "0"),
    "kcmp": ("@PID@", "@TRAINER@", "0", "0", "0"),
    "rt_sigqueueinfo": ("@PID@", "0", "0"),
    "rt_tgsigqueueinfo": ("@PID@", "@PID@", "0", "0"),
    "io_uring_setup": ("8", "bytes(120)"),
    "io_uring_enter": ("0", "0", "0", "0", "0"),
    "io_setup": ("8", "bytes(8)"),
    "bpf": ("0", "bytes(120)", "120"),
    "perf_event_open": ("bytes(112)", "0", "-1", "-1", "0"),
    "userfaultfd": ("1",),
    "keyctl": ("0", "-3", "0"),
    "add_key": ("b'user'", "b'torl'", "b'x'", "1", "-3"),
    "request_key": ("b'user'", "b'torl'", "0", "0"),
    "memfd_create": ("b'x'", "0"),
    "memfd_secret": ("0",),
    "shmget": ("0", "4096", "0o1600"),
    "semget": ("0", "1", "0o1600"),
    "msgget": ("0", "0o1600"),
    "mq_open": ("b'torl'", "66", "0o600", "0"),
    "name_to_handle_at": ("-100", "b'/'", "bytes(200)", "bytes(8)", "0"),
    "open_by_handle_at": ("0", "bytes(64)", "0"),
    "openat2": ("-100", "b'/dev/null'", "bytes(24)", "24"),
    "fanotify_init": ("0", "0"),
    "inotify_init": (),
    "inotify_init1": ("0",),
    "signalfd4": ("-1", "bytes(8)", "8", "0"),
    "mount": ("b'x'", "b'/tmp'", "b'tmpfs'", "0", "0"),
    "umount2": ("b'/box'", "2"),
    "pivot_root": ("b'.'", "b'.'"),
    "chroot": ("b'/'",),
    "open_tree": ("-100", "b'/'", "1"),
    "move_mount": ("0", "b''", "-100", "b'/tmp'", "4"),
    "fsopen": ("b'tmpfs'", "0"),
    "fspick": ("-100", "b'/'", "0"),
    "mount_setattr": ("-100", "b'/'", "0", "bytes(32)", "32"),
    "statmount": ("bytes(24)", "bytes(600)", "600", "0"),
    "listmount": ("bytes(24)", "bytes(80)", "10", "0"),
    "setuid": ("0",),
    "setreuid": ("0", "0"),
    "setresgid": ("0", "0", "0"),
    "setgroups": ("0", "0"),
    "setfsuid": ("0",),
    "capset": ("bytes.fromhex('2205082000000000')", "b'\\xff' * 24"),
    "personality": ("0x0400000",),
    "modify_ldt": ("0", "bytes(64)", "64"),
    "iopl": ("3",),
    "ioperm": ("0", "1", "1"),
    "seccomp": ("1", "0", "bytes(16)"),
    "seccomp_strict": (),
    "landlock_create_ruleset": ("0", "0", "1"),
    "landlock_restrict_self": ("0", "0"),
    "ioprio_set": ("1", "0", "0"),
    "sched_setattr": ("0", "bytes(48)", "0"),
    "setpriority": ("0", "@TRAINER@", "19"),
    "mbind": ("0", "0", "0", "0", "0", "0"),
    "migrate_pages": ("@PID@", "0", "0", "0"),
    "move_pages": ("@PID@", "0", "0", "0", "0", "0"),
    "mlock": ("0", "4096"),
    "pkey_alloc": ("0", "0"),
    "map_shadow_stack": ("0", "4096", "0"),
    "mseal": ("0", "0", "0"),
    "vmsplice": ("1", "0", "0", "0"),
    "splice": ("0", "0", "1", "0", "1", "0"),
    "sync": (),
    "syslog": ("3", "bytes(100)", "100"),
    "acct": ("0",),
    "swapon": ("b'/x'", "0"),
    "reboot": ("0", "0", "0", "0"),
    "sethostname": ("b'torl'", "4"),
    "settimeofday": ("0", "0"),
    "clock_settime": ("0", "bytes(16)"),
    "adjtimex": ("bytes(208)",),
    "init_module": ("bytes(64)", "64", "b''"),
    "finit_module": ("0", "b''", "0"),
    "delete_module": ("b'x'", "0"),
    "kexec_load": ("0", "0", "0", "0"),
    "quotactl": ("0", "0", "0", "0"),
    "vhangup": (),
    "lookup_dcookie": ("0", "0", "0"),
    "mknod": ("b'n'", "0o20666", "259"),
    "chown": ("b'.'", "0", "0"),
    "setxattr": ("b'.'", "b'user.x'", "b'x'", "1", "0"),
    "lsm_list_modules": ("bytes(64)", "bytes(8)", "0"),
    "remap_file_pages": ("0", "4096", "0", "0", "0"),
}
# Without protection, an ordinary user gets an answer from these.
HARMLESS = """
unshare setns pidfd_open pidfd_getfd process_vm_readv rt_sigqueueinfo io_uring_setup io_setup semget
bpf keyctl memfd_create name_to_handle_at inotify_init inotify_init1 signalfd4 ptrace
personality modify_ldt landlock_restrict_self splice vmsplice adjtimex setfsuid
""".split()
ONLY_X86 = [
    "modify_ldt",
    "iopl",
    "ioperm",
    "map_shadow_stack",
    "mknod",
    "chown",
    "inotify_init",
    "lookup_dcookie",
]


def raw(name: str) -> Case:
    call = {"clone_vm": "clone", "seccomp_strict": "seccomp"}.get(name, name)
    arguments = ("0", "0", "0") if name == "seccomp_strict" else RAW[name]
    return Case(
        f"raw_{name}",
        syscall(call, *arguments),
        out="^refused",
        breaks="ESCAPED" if name in HARMLESS else "",
        alone=name in HARMLESS,
        machine="x86_64" if name in ONLY_X86 else "",
    )


def control(name: str, *arguments: str) -> Case:
    """prctl(2): what a process may ask for itself."""
    return Case(
        f"prctl_{name}", syscall("prctl", *arguments, *["0"] * (5 - len(arguments))), out="^refused"
    )


UNKNOWN = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for number in [*range(337, 424), *range(480, 1100)]:  # 335 and 336: the kernel filters them not
    if libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.ENOSYS:
        print('ESC' + 'APED', number, ctypes.get_errno())
print('done')
"""
HIGH_HALF = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number, arguments in ((62, (@PID@, 15)), (56, (17, 0)), (302, (@PID@, 7, 0, 0))):
    for high in (0, 1 << 32, 0xffffffff << 32):
        converted = [ctypes.c_long(a | high) for a in arguments]
        if libc.syscall(ctypes.c_long(number | high), *converted) != -1:
            print('ESC' + 'APED')
print('done')
"""
UNFILTER = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
allow = ctypes.create_string_buffer(bytes([6, 0, 0, 0, 0, 0, 0xff, 0x7f]))
class P(ctypes.Structure): _fields_ = [('n', ctypes.c_ushort), ('p', ctypes.c_void_p)]
print(libc.prctl(22, 2, ctypes.byref(P(1, ctypes.addressof(allow))), 0, 0))
print(libc.fork())
"""
THREAD_SEES = """
import threading, os
def f():
    try: os.kill(@PID@, 15); print('ESC' + 'APED')
    except OSError as e: print(type(e).__name__)
t = threading.Thread(target=f); t.start(); t.join()
"""

CASES = [
    *map(raw, RAW),
    control("death_signal", "1", "0"),
    control("dumpable", "4", "1"),
    control("keep_capabilities", "8", "1"),
    control("strict_filter", "22", "1"),
    control("capability_bounds", "24", "0"),
    control("secure_bits", "28", "47"),
    control("memory_map", "35", "1", "0"),
    control("subreaper", "36", "1"),
    control("no_new_privileges_off", "38", "0"),
    control("tracer", "0x59616d61", "-1"),
    control("timer_slack", "29", "1"),
    Case(
        "prctl_name",
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "print(libc.prctl(15, b'torl', 0, 0, 0), libc.prctl(39, 0, 0, 0, 0))",
        out="^0 1$",
    ),
    Case("unknown_numbers", UNKNOWN, out="^done$", machine="x86_64"),
    Case("high_half", HIGH_HALF, out=r"\Adone$", machine="x86_64", breaks="ESCAPED|host:", alone=True),
    Case("filter_replaced", UNFILTER, out="^-1\n-1$"),
    Case("filter_in_threads", THREAD_SEES, out="PermissionError", breaks="ESCAPED|host:", alone=True),
    Case("ioctl_types_on_terminal", attempt("fcntl.ioctl(1, 0x5412, b'x')", "import fcntl"), out="Error"),
    Case("ioctl_console", attempt("fcntl.ioctl(1, 0x541c, b'x')", "import fcntl"), out="Error"),
    Case("ioctl_terminal_given", attempt("fcntl.ioctl(0, 0x540e, 1)", "import fcntl"), out="Error"),
    Case(
        "ioctl_terminal_high",
        "import ctypes\nprint(ctypes.CDLL(None).syscall(16, 1, ctypes.c_long((1 << 32) | 0x5412), b'x'))",
        out="^-1$",
        machine="x86_64",
    ),
    Case("ioctl_usual", "import os, sys\nprint(sys.stdout.isatty(), os.isatty(0))", out="^False False$"),
    Case("lease", attempt("fcntl.fcntl(0, 1024, 0)", "import fcntl"), out="Error"),
    Case("notify", attempt("fcntl.fcntl(os.open('/', 0), 1026, 1)", "import fcntl, os"), out="Error"),
    Case(
        "capabilities",
        "import ctypes, struct\nd = ctypes.create_string_buffer(24)\n"
        "print(ctypes.CDLL(None).capget(struct.pack('Ii', 0x20080522, 0), d), d.raw == bytes(24))",
        out="^0 True$",
    ),
    Case(
        "user",
        "import os\nprint(os.getuid() == os.geteuid(), os.getgroups() in ([], [os.getgid()]))",
        out="^True True$",
        tiers={"B": {"out": "^(True|False) True$"}},  # where Python lies in root's own folder
    ),
    Case(
        "timers",
        "import ctypes\nlibc = ctypes.CDLL(None)\nn = 0\n"
        "while libc.timer_create(0, 0, ctypes.byref(ctypes.c_void_p())) == 0 and n < 999: n += 1\n"
        "print(n)",
        out=r"^\d+$",
    ),
    Case(
        "timer_then_exit",
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.3)\nsignal.alarm(1)",
        out=r"\A\Z",
    ),
    Case("time_namespace", "import time\nprint(time.clock_gettime(time.CLOCK_BOOTTIME) > 0)", out="True"),
    Case("clock_of_others", "import time\nprint(time.clock_gettime((~@PID@ << 3) | 2))", "ok error"),
    Case("executable_memory_ok", "import mmap\nprint(len(mmap.mmap(-1, 4096, prot=7)))", out="^4096$"),
]
