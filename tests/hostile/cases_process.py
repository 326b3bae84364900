"""C: ways to end, and other programs."""

from .case import ASLEEP, BUSY, Case, denied, refused

SECONDS = "import time; time.sleep(60)"


def waits(name: str, code: str) -> Case:
    return Case(name, code, "timeout_wall", signal=9, limits=ASLEEP)


EXITS = [
    Case(f"exit_{n}", f"import os\nprint(1, flush=True)\nos._exit({n})", "error", out="^1$", exit_code=n)
    for n in (1, 2, 7, 124, 125, 126, 127, 128, 137, 139, 255)
]

CASES = [
    *EXITS,
    Case("exit_0", "import os\nos._exit(0)"),
    Case("exit_256", "import os\nos._exit(256)"),
    Case(
        "exit_in_thread",
        "import os, threading, time\nthreading.Thread(target=os._exit, args=(5,)).start()\ntime.sleep(9)",
        "error",
        exit_code=5,
    ),
    Case("exit_in_c", "import ctypes\nctypes.CDLL(None).exit(6)", "error", exit_code=6),
    Case(
        "exit_group_raw",
        "import ctypes\nctypes.CDLL(None).syscall(231, 8)",
        "error",
        exit_code=8,
        machine="x86_64",
    ),
    Case(
        "exit_of_main_thread_alone",
        "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)",
        "timeout_wall",
        limits=ASLEEP,
        machine="x86_64",
    ),
    Case(
        "sys_exit_in_thread",
        "import sys, threading\nt = threading.Thread(target=sys.exit, args=(4,))\nt.start()\n"
        "t.join()\nprint('on')",
        out="^on$",
    ),
    Case(
        "error_in_thread",
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\nprint('on')",
        out="^on$",
        err="ZeroDivisionError",
    ),
    Case(
        "thread_hook_raises",
        "import threading\ndef h(a): raise KeyError\nthreading.excepthook = h\n"
        "t = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\nprint('on')",
        out="^on$",
    ),
    # ends that hang or raise
    Case(
        "atexit_hangs",
        "import atexit, time\nprint('x')\nr = atexit.register(time.sleep, 60)",
        "timeout_wall",
        out="^x$",
        limits=ASLEEP,
    ),
    Case(
        "atexit_loops",
        "import atexit\nprint('x')\nr = atexit.register(lambda: all(True for _ in iter(int, 1)))",
        "timeout_cpu",
        out="^x$",
        limits=BUSY,
    ),
    Case(
        "atexit_raises",
        "import atexit\nr = atexit.register(lambda: 1 / 0)\nprint('x')",
        "ok error",
        out="^x$",
    ),
    Case(
        "atexit_exits",
        "import atexit, os\nr = atexit.register(os._exit, 3)\nprint('x')",
        "error",
        out="^x$",
        exit_code=3,
    ),
    Case(
        "atexit_registers",
        "import atexit\ndef f():\n    atexit.register(f)\natexit.register(f)\nprint('x')\nNone",
        "ok timeout_cpu",
        out="^x$",
        limits=BUSY,
    ),
    Case(
        "finalizer_loops",
        "class A:\n    def __del__(s):\n        while True: pass\na = A()",
        "timeout_cpu",
        limits=BUSY,
    ),
    Case(
        "finalizer_in_cycle_hangs",
        "import time\nclass A:\n    def __del__(s): time.sleep(60)\na = A()\na.a = a\ndel a\n"
        "import gc\nn = gc.collect()",
        "timeout_wall",
        limits=ASLEEP,
    ),
    Case(
        "finalizer_raises",
        "class A:\n    def __del__(s): raise ValueError('del')\na = A()\ndel a\nprint('x')",
        out="^x$",
        err="ValueError: del",
    ),
    Case(
        "weakref_finalizer",
        "import weakref\nclass A: pass\na = A()\nf = weakref.finalize(a, print, 'gone')\ndel a",
        out="^gone$",
    ),
    Case(
        "weakref_finalizer_at_exit",
        "import weakref\nclass A: pass\na = A()\nf = weakref.finalize(a, print, 'gone')",
        out="^gone$",
    ),
    waits(
        "thread_outlives", f"import threading\ndef f():\n    {SECONDS}\nthreading.Thread(target=f).start()"
    ),
    Case(
        "daemon_thread_does_not",
        f"import threading\ndef f():\n    {SECONDS}\n"
        f"threading.Thread(target=f, daemon=True).start()\nprint('x')",
        out="^x$",
    ),
    waits(
        "thread_holds_lock",
        "import threading\nl = threading.Lock()\nl.acquire()\nthreading.Thread(target=l.acquire).start()",
    ),
    waits(
        "stdout_lock_held",
        "import sys, threading, time\ndef f():\n"
        "    with open(1, 'wb', closefd=False) as b: time.sleep(60)\n"
        "threading.Thread(target=f).start()",
    ),
    Case(
        "trace_kills",
        "import os, sys\nsys.settrace(lambda *a: os._exit(9))\ndef f(): pass\nf()",
        "error",
        exit_code=9,
    ),
    Case(
        "trace_raises",
        "import sys\ndef t(*a): raise ValueError('trace')\nsys.settrace(t)\ndef f(): pass\nf()",
        "error",
        err="ValueError: trace",
    ),
    Case(
        "profile_loops",
        "import sys\ndef t(*a):\n    while True: pass\nsys.setprofile(t)\nlen([])",
        "timeout_cpu",
        limits=BUSY,
    ),
    Case(
        "audit_hook_raises",
        "import sys\ndef h(e, a):\n    if e == 'compile': raise RuntimeError('audit')\n"
        "sys.addaudithook(h)\ncompile('1', 's', 'eval')",
        "error",
        err="audit",
    ),
    Case(
        "gc_callback_raises",
        "import gc\ngc.callbacks.append(lambda *a: 1 / 0)\nn = gc.collect()\nprint('x')",
        out="^x$",
    ),
    Case(
        "raise_keyboard_interrupt", "raise KeyboardInterrupt", "error", err="KeyboardInterrupt", exit_code=1
    ),
    Case(
        "raise_base_exception",
        "class B(BaseException): pass\nraise B('b')",
        "error",
        err="B: b",
        exit_code=1,
    ),
    Case("raise_generator_exit", "raise GeneratorExit", "error", err="GeneratorExit", exit_code=1),
    Case("raise_stop_iteration", "raise StopIteration", "error", err="StopIteration", exit_code=1),
    Case(
        "interrupt_main",
        "import _thread, time\n_thread.interrupt_main()\ntime.sleep(1)",
        "error",
        err="KeyboardInterrupt",
        exit_code=1,
    ),
    # other programs
    refused("subprocess", "subprocess.run(['true'])", "import subprocess"),
    refused("subprocess_shell", "subprocess.check_output('echo x', shell=True)", "import subprocess"),
    Case(
        "os_system",
        "import os\nprint(os.system('echo ESC''APED'))",
        out="^(-1|[1-9][0-9]*)$",
        breaks="ESCAPED",
    ),
    refused("popen", "assert os.popen('echo x').read()"),
    refused("posix_spawn", "os.posix_spawn('/bin/true', ['true'], {})"),
    Case(
        "exec",
        "import os\nos.execv('/bin/sh', ['sh', '-c', 'echo ESC''APED'])",
        "error",
        err="Error",
        breaks="ESCAPED",
    ),
    Case(
        "exec_python",
        "import os, sys\nos.execv(sys.executable, ['python', '-c', 'print(\"ESC\" + \"APED\")'])",
        "error",
        err="Error",
        breaks="ESCAPED",
    ),
    refused(
        "multiprocessing",
        "p = m.get_context('fork').Process(target=int)\np.start()\np.join()",
        "import multiprocessing as m",
    ),
    Case(
        "process_pool",
        "from concurrent.futures import ProcessPoolExecutor as P\n"
        "with P(2) as p: print(list(p.map(abs, [1])))",
        "error",
        err="Error",
        exit_code=1,
    ),
    denied("pty", "pty.spawn('/bin/true')", "import pty"),
    denied("terminal", "os.openpty()"),
    denied("new_session", "os.setsid()"),
    denied("new_group", "os.setpgid(0, 0)"),
]
