"""C: signals to itself, and signals, limits and priorities for others."""

from .case import ASLEEP, BUSY, TIGHT, Case, denied, refused

SECONDS = "import time; time.sleep(60)"
MACHINE_CODE = """
import ctypes, mmap
m = mmap.mmap(-1, 4096, prot=7, flags=0x22)
m.write(bytes.fromhex('{hex}'))
print(ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))())
print('ESC' + 'APED')
"""
PRLIMIT = "import resource as r\nlimits = r.prlimit({pid}, r.{kind}, {value})"


def ends(name: str, code: str, number: int) -> Case:
    """The program kills itself."""
    return Case(
        name, f"print('before')\n{code}\nprint('after')", "crashed", out=r"\Abefore\n\Z", signal=number
    )


def waits(name: str, code: str) -> Case:
    return Case(name, code, "timeout_wall", signal=9, limits=ASLEEP)


CASES = [
    # signals to itself
    ends("abort", "import os\nos.abort()", 6),
    ends("kill_self", "import os\nos.kill(os.getpid(), 9)", 9),
    Case("kill_self_small", "import os\nos.kill(os.getpid(), 9)", "crashed", signal=9, limits=TIGHT),
    ends("term_self", "import os\nos.kill(os.getpid(), 15)", 15),
    ends("raise_signal", "import signal\nsignal.raise_signal(10)", 10),
    ends(
        "real_timer", "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.02)\ntime.sleep(3)", 14
    ),
    ends("xcpu_self", "import os\nos.kill(os.getpid(), 24)", 24),
    ends("real_time_signal", "import os\nos.kill(os.getpid(), 40)", 40),
    ends("null", "import ctypes\nctypes.string_at(0)", 11),
    ends("overwrite", "import ctypes\nctypes.memset(0x1000, 1, 1 << 20)", 11),
    ends("jump", "import ctypes\nctypes.CFUNCTYPE(None)(8)()", 11),
    Case(
        "broken_object",
        "import ctypes\nctypes.memset(id(int), 0, 400)\nprint(int(3))",
        "crashed error timeout_cpu",
        limits=BUSY,
    ),
    Case(
        "broken_code",
        "def f(): pass\nf.__code__ = f.__code__.replace(co_code=bytes(200))\nf()",
        "ok crashed error timeout_cpu",
        limits=BUSY,
    ),
    Case("illegal_instruction", MACHINE_CODE.format(hex="0f0b"), "crashed", signal=4, machine="x86_64"),
    Case(
        "int_0x80",
        MACHINE_CODE.format(hex="b814000000cd80c3"),
        "crashed",
        machine="x86_64",
        breaks="ESCAPED|11",
    ),
    Case(
        "x32",
        "import ctypes\nprint(ctypes.CDLL(None).syscall(0x40000000 + 39))\nprint('after')",
        "crashed",
        signal=31,
        machine="x86_64",
    ),
    Case(
        "stop_self",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "timeout_wall",
        limits=ASLEEP,
    ),
    Case(
        "stop_from_terminal",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTSTP)",
        "ok timeout_wall",
        limits=ASLEEP,
    ),
    waits(
        "all_signals_ignored",
        f"import signal\nfor s in set(signal.Signals) - {{9, 19}}:\n"
        f"    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: pass\n{SECONDS}",
    ),
    waits("all_signals_blocked", f"import signal\nb = signal.pthread_sigmask(0, range(1, 65))\n{SECONDS}"),
    Case(
        "handler_works",
        "import os, signal\nh = signal.signal(signal.SIGUSR1, lambda *a: print('got'))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\nprint('on')",
        out="^got\non$",
    ),
    Case(
        "handler_raises_timeout",
        "import signal\ndef h(*a): raise TimeoutError('mine')\nsignal.signal(signal.SIGALRM, h)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\nimport time\ntry: time.sleep(3)\n"
        "except TimeoutError as e: print(e)",
        out="^mine$",
    ),
    Case(
        "sigint_default",
        "import signal\nsignal.raise_signal(signal.SIGINT)",
        "error",
        err="KeyboardInterrupt",
    ),
    Case(
        "signal_storm",
        "import os, signal\nn = 0\ndef h(*a):\n    global n\n    n += 1\nsignal.signal(10, h)\n"
        "for _ in range(2000): os.kill(os.getpid(), 10)\nprint(n)",
        out="^2000$",
    ),
    # signals and more to others
    refused("signal_other", "os.kill(@PID@, signal.SIGTERM)"),
    refused("signal_stop", "os.kill(@PID@, signal.SIGSTOP)"),
    refused("signal_continue", "os.kill(@PID@, signal.SIGCONT)"),
    refused(
        "signal_thread",
        "assert ctypes.CDLL(None).syscall(234, @PID@, @PID@, 15) == 0",
        "import ctypes",
        machine="x86_64",
    ),
    refused(
        "signal_tkill",
        "assert ctypes.CDLL(None).syscall(200, @PID@, 15) == 0",
        "import ctypes",
        machine="x86_64",
    ),
    refused("signal_queue", "assert ctypes.CDLL(None).sigqueue(@PID@, 15, None) == 0", "import ctypes"),
    refused("signal_pidfd", "signal.pidfd_send_signal(os.pidfd_open(@PID@), 15)"),
    refused("signal_test", "os.kill(@TRAINER@, 0)"),
    refused(
        "signal_of_descriptor",
        "r, w = os.pipe()\nf.fcntl(r, f.F_SETOWN, @PID@)\nassert f.fcntl(r, f.F_GETOWN)",
        "import fcntl as f, os",
    ),
    refused(
        "signal_of_descriptor_ex",
        "r, w = os.pipe()\nf.fcntl(r, 15, struct.pack('ii', 1, @PID@))",
        "import fcntl as f, os, struct",
    ),
    refused("signal_number_of_descriptor", "r, w = os.pipe()\nf.fcntl(r, 10, 9)", "import fcntl as f, os"),
    denied("signal_parent", "os.kill(os.getppid() or 1, 9)"),
    denied("signal_all", "os.kill(-1, 9)"),
    denied("signal_own_group", "os.kill(0, 9)"),
    denied("signal_named_group", "os.killpg(os.getpgrp() or 1, 9)"),
    denied("signal_first", "os.kill(1, 9)"),
    denied("signal_neighbours", "done = [os.kill(p, 9) for p in range(2, 400) if p != os.getpid() and p]"),
    Case(
        "signal_every_neighbour",
        "import os\nhit = 0\nfor p in range(1, 5000):\n    if p != os.getpid():\n"
        "        try: os.kill(p, 9); hit += 1\n        except OSError: pass\n"
        "print('ESC' + 'APED' if hit else 'none')",
        out="none",
    ),
    refused("limit_other", PRLIMIT.format(pid="@PID@", kind="RLIMIT_NOFILE", value="(16, 16)"), ""),
    refused("limit_trainer", PRLIMIT.format(pid="@TRAINER@", kind="RLIMIT_CORE", value="(0, 0)"), ""),
    refused("limit_read_other", "import resource as r\nr.prlimit(@PID@, r.RLIMIT_NOFILE)", ""),
    denied("limit_parent", "import resource as r\nr.prlimit(os.getppid() or 1, r.RLIMIT_CPU, (0, 0))"),
    Case(
        "limit_read_own",
        "import os, resource as r\nprint(r.prlimit(0, r.RLIMIT_CORE), r.prlimit(os.getpid(), "
        "r.RLIMIT_CORE))",
        out=r"\(0, 0\) \(0, 0\)",
    ),
    refused("priority_other", "os.setpriority(os.PRIO_PROCESS, @PID@, 19)"),
    denied("priority_parent", "os.setpriority(os.PRIO_PROCESS, os.getppid() or 1, 19)"),
    denied("priority_of_user", "os.setpriority(os.PRIO_USER, os.getuid(), 19)"),
    refused("affinity_other", "os.sched_setaffinity(@PID@, {min(os.sched_getaffinity(0))})"),
    refused("scheduler_other", "os.sched_setscheduler(@PID@, os.SCHED_IDLE, os.sched_param(0))"),
    refused("affinity_own", "os.sched_setaffinity(0, os.sched_getaffinity(0))"),
]
