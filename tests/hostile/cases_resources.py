"""A: processor time, memory, threads, descriptors, disk."""

from .case import ASLEEP, BUSY, TIGHT, Case, attempt

NO_SCRATCH = {"BD": {"want": "error", "out": "", "err": "Read-only file system|Permission denied"}}
FULL = {"BD": {"out": "EROFS|EACCES"}}
GREEDY = {"want": "error", "err": "MemoryError", "exit_code": 1, "limits": TIGHT}
BUSY_WAIT = "end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


def endless(name: str, code: str) -> Case:
    """It burns processor time until it is killed."""
    return Case(name, code, "timeout_cpu", signal=9, limits=BUSY)


def waits(name: str, code: str) -> Case:
    """It waits until it is killed."""
    return Case(name, code, "timeout_wall", signal=9, limits=ASLEEP)


def greedy(name: str, code: str) -> Case:
    """It takes memory until there is none, which is an ordinary error."""
    return Case(name, code, **GREEDY)


FORKS = """
import os
for _ in range(6):
    try:
        if {call} == 0:
            os._exit(0)
        print('ESC' + 'APED')
    except OSError as e:
        print(type(e).__name__)
"""
COUNT_THREADS = """
import threading, time
threading.stack_size({stack})
n = 0
try:
    while n < 1000:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        n += 1
    print('ESC' + 'APED')
except RuntimeError as e:
    print(e, n < 200)
"""
FILL = """
import errno, os
n = 0
try:
    while n < {many}:
        {step}
        n += 1
    print('ESC' + 'APED')
except OSError as e:
    print(errno.errorcode[e.errno], n)
"""
HOARD = """
import errno, os, socket
held = []
total = 0
try:
    while True:
        {open}
        try:
            while total < 90 << 20: total += os.write(w, bytes(65536))
            print('ESC' + 'APED', total)
            break
        except BlockingIOError: pass
except OSError as e:
    print(errno.errorcode[e.errno])
"""
GZIP = "import gzip\ndata = gzip.compress(bytes(8 << 20)) * 40\nprint(len(gzip.decompress(data)))"

CASES = [
    # processes and threads
    Case("fork", FORKS.format(call="os.fork()"), out="^PermissionError$", breaks="ESCAPED", alone=True),
    Case("forkpty", FORKS.format(call="os.forkpty()[0]"), out="Error", tiers={"D": {"out": ""}}),
    Case("fork_in_c", "import ctypes\nprint(ctypes.CDLL(None).fork())", out="^-1$"),
    Case("vfork_in_c", "import ctypes\nprint(ctypes.CDLL(None).vfork())", out="^-1$"),
    Case("thread_bomb", COUNT_THREADS.format(stack=0), out="new thread True", alone=True),
    Case("thread_bomb_of_small", COUNT_THREADS.format(stack=32768), out="new thread True", alone=True),
    Case(
        "thread_stacks",
        "import threading\nthreading.stack_size(1 << 30)\nt = threading.Thread(target=print)\nt.start()",
        "error",
        err="can't start new thread",
    ),
    Case(
        "threads_burn_one_budget",
        "import threading\nfor _ in '1234': threading.Thread(target=sum, args=(range(10**10),)).start()",
        "timeout_cpu",
        limits={"cpu_s": 0.2},
    ),
    Case(
        "thread_pool_of_many",
        "from concurrent.futures import ThreadPoolExecutor as P\n"
        "with P(16) as pool: print(sum(pool.map(lambda n: n * n, range(200))))",
        out="^2646700$",
    ),
    # memory
    greedy("memory_list", "a = []\nwhile True: a.append('x' * 10**6)"),
    greedy("memory_bytes", "bytes(1 << 32)"),
    greedy("memory_bytearray", "a = bytearray()\nwhile True: a += bytes(1 << 20)"),
    greedy("memory_string", "a = 'ab'\nwhile True: a += a"),
    greedy("memory_numpy", "import numpy as np\na = np.ones((40000, 40000))\nprint(a.sum())"),
    greedy(
        "memory_numpy_grows",
        "import numpy as np\na = np.ones(1000)\nwhile True: a = np.concatenate([a, a])",
    ),
    greedy("memory_list_of_range", "l = list(range(10**10))"),
    greedy("memory_product", "import itertools\nlist(itertools.product(range(100), repeat=6))"),
    greedy("memory_shift", "a = 1 << 10**10\nprint(a)"),
    greedy("memory_format", "print(len(f'{1:2000000000}'))"),
    greedy("memory_dict", "d = {n: [n] * 50 for n in range(10**7)}"),
    greedy("memory_gzip_bomb", GZIP),
    greedy("memory_regex", "import re\nre.sub('', 'x' * 10**6, 'y' * 10**6)"),
    greedy("memory_ctypes_array", "import ctypes\na = (ctypes.c_char * (1 << 32))()"),
    greedy("memory_exception_chain", "def f():\n    try: bytes(1 << 40)\n    finally: bytes(1 << 40)\nf()"),
    Case(
        "memory_caught",
        "try: bytes(1 << 40)\nexcept MemoryError: print('caught')\nprint(len(bytes(1 << 20)))",
        out="caught\n1048576",
        limits=TIGHT,
    ),
    Case(
        "memory_map_private",
        "import mmap\nm = [mmap.mmap(-1, 1 << 28, flags=mmap.MAP_PRIVATE) for _ in range(8)]",
        "error",
        err="Cannot allocate memory",
    ),
    Case(
        "memory_map_shared",
        "import mmap\nm = [mmap.mmap(-1, 1 << 28) for _ in range(8)]",
        "error",
        err="Cannot allocate memory",
        breaks="",
    ),
    Case(
        "memory_remap",
        "import mmap\nm = mmap.mmap(-1, 1 << 20)\nm.resize(1 << 32)",
        "error",
        err="Cannot allocate memory",
    ),
    Case(
        "memory_file",
        attempt("os.write(os.memfd_create('x'), bytes(1 << 20))", "import os"),
        breaks="ESCAPED",
    ),
    Case(
        "memory_shared_named",
        attempt(
            "m = ctypes.CDLL(None)\nassert m.shm_open(b'/torl-shm', 66, 0o600) >= 0, 'refused'",
            "import ctypes",
        ),
        out="refused",
        breaks="host: shared memory",
        alone=True,
    ),
    Case(
        "memory_shared_python",
        "from multiprocessing import shared_memory as s\ns.SharedMemory('torl-x', True, 1 << 20)",
        "error",
        err="Error",
    ),
    Case(
        "memory_huge_pages",
        "import mmap\nm = [mmap.mmap(-1, 1 << 21, flags=0x40022) for _ in range(1000)]",
        "error",
    ),
    Case(
        "memory_pipes",
        HOARD.format(open="r, w = os.pipe(); os.set_blocking(w, False); held.append((r, w))"),
        out="EMFILE",
    ),
    Case(
        "memory_wide_pipes",
        HOARD.format(
            open="r, w = os.pipe(); os.set_blocking(w, False); held.append((r, w))\n"
            "        try: __import__('fcntl').fcntl(w, 1031, 1 << 20)\n        except OSError: pass"
        ),
        out="EMFILE",
    ),
    Case(
        "memory_socket_pairs",
        HOARD.format(
            open="a, b = socket.socketpair(); a.setblocking(False); held += [a, b]; w = a.fileno()\n"
            "        try: a.setsockopt(1, 7, 1 << 30)\n"
            "        except OSError: pass"
        ),
        out="EMFILE",
    ),
    # stacks
    Case("recursion", "def f(n): return f(n + 1)\nf(0)", "error", err="RecursionError: maximum"),
    Case(
        "recursion_in_c",
        "import sys\nsys.setrecursionlimit(10**8)\nclass A:\n    def __repr__(s): return repr(s)\n"
        "repr(A())",
        "crashed error",
    ),
    Case(
        "recursion_raised",
        "import sys\nsys.setrecursionlimit(10**5)\ndef f(n): return f(n + 1)\nf(0)",
        "error crashed",
        limits={"cpu_s": 0.7},
    ),
    Case("json_deep", "import json\njson.loads('[' * 10**5)", "error", err="RecursionError"),
    Case("source_deep", "(" * 5000 + "1" + ")" * 5000, "error", err="(SyntaxError|MemoryError|Recursion)"),
    Case("source_deep_lists", "x = " + "[" * 90 + "]" * 90 + "\nprint(len(x))", out="^1$"),
    Case("eval_deep", "eval('-' * 10**5 + '1')", "error crashed"),
    Case(
        "pickle_deep",
        "import pickle\na = []\nfor _ in range(10**5): a = [a]\npickle.dumps(a)",
        "error",
        err="RecursionError",
    ),
    Case("dealloc_deep", "a = None\nfor _ in range(10**6): a = (a,)\ndel a\nprint('fine')", out="fine"),
    # time
    endless("loop", "while True: pass"),
    endless(
        "loop_catches_all",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ),
    endless("c_factorial", "import math\nprint(len(str(math.factorial(10**7))))"),
    endless("c_power", "10**(3 * 10**7) % 7"),
    endless("c_regex", "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')"),
    endless("c_sum", "sum(range(10**12))"),
    endless("c_in", "(10**12 + 1) in map(int, iter(int, 1))"),
    endless("sort_key", "class E:\n    def __lt__(s, o):\n        while True: pass\nsorted([E(), E()])"),
    endless(
        "big_fraction", "from fractions import Fraction as F\nx = F(1, 3)\nwhile True: x = x * x + F(1, 7)"
    ),
    endless("generator", "def g():\n    while True: yield\nfor _ in g(): pass"),
    endless(
        "sympy_slow",
        "from sympy import factorint, nextprime\nprint(factorint(nextprime(10**30) * nextprime(10**31)))",
    ),
    endless("numpy_slow", "import numpy as np\na = np.ones((600, 600))\nwhile True: a = a @ a / 600"),
    endless(
        "metaclass",
        "class M(type):\n    def __new__(m, *a):\n        while True: pass\nclass A(metaclass=M): pass",
    ),
    endless(
        "signal_xcpu_ignored",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    ),
    endless("after_main", "import threading\nthreading.Thread(target=sum, args=(range(10**12),)).start()"),
    endless("spin_on_clock", f"import time\n{BUSY_WAIT}"),
    waits("sleep", "import time\nprint('a')\ntime.sleep(10**6)"),
    waits("sleep_select", "import select\nselect.select([], [], [], 10**6)"),
    waits("pause", "import signal\nsignal.pause()"),
    waits("deadlock", "import threading\nl = threading.Lock()\nl.acquire()\nl.acquire()"),
    waits("queue", "import queue\nqueue.Queue().get()"),
    waits("event", "import threading\nthreading.Event().wait()"),
    waits("asyncio_forever", "import asyncio\nasyncio.run(asyncio.Event().wait())"),
    waits("own_pipe", "import os\nr, w = os.pipe()\nos.read(r, 1)"),
    waits("flock_twice", "import fcntl, os\nr, w = os.pipe()\nos.read(r, 1)"),
    waits("futex", "import threading\nb = threading.Barrier(2)\nb.wait()"),
    Case(
        "sleep_many_short", "import time\nfor _ in range(20): time.sleep(0.005)\nprint('done')", out="done"
    ),
    # descriptors and timers
    Case(
        "descriptors_pipes",
        "import os\nwhile True: os.pipe()",
        "error",
        err="Too many open files",
        breaks="",
    ),
    Case("descriptors_dup", "import os\nwhile True: os.dup(0)", "error", err="Too many open files"),
    Case(
        "descriptors_epoll",
        "import select\nl = []\nwhile True: l.append(select.epoll())",
        "error",
        err="Too many open",
    ),
    Case("descriptors_far", "import os\nos.dup2(0, 5000)", "error", err="Bad file descriptor"),
    # disk
    Case(
        "disk_full",
        FILL.format(many=3000, step="open(f'f{n % 900}', 'ab').write(bytes(1 << 20))"),
        out="ENOSPC|EFBIG",
        tiers=FULL,
    ),
    Case(
        "disk_inodes", FILL.format(many=5000, step="open(f'f{n}', 'w').close()"), out="ENOSPC", tiers=FULL
    ),
    Case(
        "disk_directories",
        FILL.format(many=5000, step="os.mkdir('d'); os.chdir('d')"),
        out="ENOSPC|ENAMETOOLONG",
        tiers=FULL,
    ),
    Case("disk_links", FILL.format(many=5000, step="os.symlink('x', f's{n}')"), out="ENOSPC", tiers=FULL),
    Case(
        "disk_sparse",
        "open('big', 'wb').truncate(1 << 40)",
        "error",
        err="File too large",
        tiers=NO_SCRATCH,
    ),
    Case(
        "disk_seek",
        "f = open('big', 'wb')\nf.seek(1 << 40)\nf.write(b'x')\nf.flush()",
        "error",
        err="File too large",
        tiers=NO_SCRATCH,
    ),
    Case(
        "disk_allocate",
        "import os\nos.posix_fallocate(os.open('b', 66), 0, 1 << 30)",
        "error",
        err="File too large|No space",
        tiers=NO_SCRATCH,
    ),
    Case(
        "disk_mapped",
        "import mmap, os\nf = os.open('b', 66)\nos.ftruncate(f, 15 << 20)\nm = mmap.mmap(f, 0)\n"
        "m[:] = b'x' * (15 << 20)\nprint('fine')",
        out="fine",
        tiers=NO_SCRATCH,
    ),
    # limits
    Case(
        "limit_raised",
        attempt("r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY,) * 2)", "import resource as r"),
        out="Error",
    ),
    Case(
        "limit_files_raised",
        attempt("r.setrlimit(r.RLIMIT_NOFILE, (4096, 4096))", "import resource as r"),
        out="Error",
    ),
    Case(
        "limit_time_raised",
        attempt("r.setrlimit(r.RLIMIT_CPU, (10**6, 10**6))", "import resource as r"),
        out="Error",
    ),
    Case(
        "limit_core_raised",
        attempt("r.setrlimit(r.RLIMIT_CORE, (1 << 20, 1 << 20))", "import resource as r"),
        out="Error",
    ),
    Case(
        "limit_lowered",
        "import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (16, 16))\nprint(r.getrlimit(r.RLIMIT_NOFILE))",
        out=r"\(16, 16\)",
    ),
    Case(
        "limit_of_space_zero",
        "import resource as r\nr.setrlimit(r.RLIMIT_AS, (0, 0))\nl = [bytes(10**7) for _ in range(9)]",
        "error crashed",
    ),
    Case("niceness", attempt("os.nice(-5)", "import os"), out="Error"),
    Case(
        "locked_memory",
        attempt("assert libc.mlockall(3) == 0, 'refused'", "import ctypes\nlibc = ctypes.CDLL(None)"),
        out="refused",
    ),
]
