"""F: what one call leaves for the next. The canary after each case looks for changes."""

from .case import BUSY, Case


def poison(name: str, code: str, want: str = "ok") -> Case:
    """It changes something that all calls start from: the next one does not see it."""
    return Case(f"poison_{name}", code, want)


def hoard(name: str, look: str) -> Case:
    """It looks for what other calls left: their code, output, secrets."""
    return Case(f"look_{name}", look, out=r"^(0|\[\]|set\(\)|none)$")


MARK = "torl-left-" + "behind"
SCAN = """
import ctypes, gc, sys
mark = ('torl-left-' + 'be' + 'hind').encode()
own = 0
def texts(objects):
    for o in objects:
        if isinstance(o, str): yield o.encode('utf-8', 'replace')
        elif isinstance(o, bytes): yield o
        elif isinstance(o, dict): yield from texts([k for k in o.keys() if isinstance(k, (str, bytes))])
print(sum(mark in t for t in texts(gc.get_objects())))
"""
# Whole pages of the interpreter's heap, not only live objects; the mark is not spelled out here.
SCAN_MEMORY = """
import ctypes, gc
near = bytes(c ^ 1 for c in b'unsm,mdgu,')
rest = bytes(b'cdihoe')
seen = set()
pages = {id(o) & ~4095 for o in gc.get_objects()}
pages |= {id(o) & ~4095 for p in gc.get_objects() if type(p) in (list, tuple, dict) for o in p}
found = 0
for page in pages:
    data = ctypes.string_at(page, 4096)
    at = data.find(near)
    while at >= 0:
        found += bytes(c ^ 1 for c in data[at + 10:at + 16]) == rest
        at = data.find(near, at + 1)
print(found)
"""

FRAMES = """
import sys
near = bytes(c ^ 1 for c in b'unsm,mdgu,').decode()
frame, found = sys._getframe(), 0
while frame:
    found += near in repr(frame.f_locals).replace(repr(near), '')
    frame = frame.f_back
print(found)
"""

CASES = [
    poison(
        "builtins",
        "import builtins\nbuiltins.print = lambda *a, **k: None\nbuiltins.sum = lambda x: 42\n"
        "builtins.evil = 1",
    ),
    poison(
        "builtins_deleted",
        "import builtins\nfor n in ('len', 'open', 'print', 'repr', 'isinstance', '__import__'): "
        "delattr(builtins, n)",
        "ok error",
    ),
    poison(
        "open",
        "import builtins, io, os\nbuiltins.open = io.open = os.open = os.write = os._exit = None",
        "ok error",
    ),
    poison("exit", "import os\nos._exit = lambda c: None\nraise SystemExit(0)", "ok error"),
    poison(
        "sympy", "import sympy\nsympy.Integer.__add__ = lambda s, o: sympy.Integer(666)\nsympy.solve = None"
    ),
    poison(
        "sympy_cache",
        "from sympy.core.cache import clear_cache\nfrom sympy import *\nx = Symbol('x')\n"
        "clear_cache()\nsolve.__globals__['roots'] = None",
    ),
    poison(
        "sympy_printing",
        "import sympy\nsympy.init_printing(order='rev-lex')\n"
        "from sympy.printing.latex import LatexPrinter\nLatexPrinter._print_Function = None",
    ),
    poison(
        "numpy",
        "import numpy as np\nold = np.seterr(all='raise')\nnp.set_printoptions(precision=1)\n"
        "np.random.seed(5)\nnp.random.rand(99)\nnp.ones = None",
    ),
    poison("random", "import random\nrandom.seed(5)\nrandom.random = lambda: 4"),
    poison(
        "modules",
        "import sys\nsys.modules['evil'] = sys\nsys.modules['math'] = None\nsys.modules['numpy'] = None",
    ),
    poison("modules_emptied", "import sys\nsys.modules.clear()", "ok error"),
    poison(
        "import_path",
        "import sys\nsys.path.clear()\nsys.meta_path.clear()\nsys.path_hooks.clear()\n"
        "sys.path_importer_cache.clear()",
    ),
    poison(
        "import_hook",
        "import sys\nclass H:\n    def find_spec(s, *a): raise ImportError('evil')\n"
        "sys.meta_path.insert(0, H())",
    ),
    poison(
        "logging",
        "import logging\nlogging.basicConfig(level=1)\nlogging.disable(99)\n"
        "logging.root.addFilter(lambda r: False)",
    ),
    poison("warnings", "import warnings\nwarnings.simplefilter('error')\nwarnings.showwarning = None"),
    poison(
        "decimal",
        "import decimal\ndecimal.getcontext().prec = 2\ndecimal.DefaultContext.prec = 2\n"
        "decimal.setcontext(decimal.DefaultContext)",
    ),
    poison(
        "locale",
        "import locale\nlocale.setlocale(locale.LC_ALL, 'C')\nlocale.getpreferredencoding = lambda: 'evil'",
    ),
    poison(
        "signals",
        "import signal\nfor s in range(1, 32):\n"
        "    if s not in (9, 19): o = signal.signal(s, signal.SIG_IGN)\n"
        "o = signal.pthread_sigmask(0, range(1, 65))\no = signal.setitimer(0, 0.5)",
    ),
    poison(
        "recursion_limit",
        "import sys\nsys.setrecursionlimit(60)\nsys.set_int_max_str_digits(0)\nsys.setswitchinterval(9)",
    ),
    poison(
        "gc",
        "import gc\ngc.disable()\ngc.set_threshold(1, 1, 1)\ngc.callbacks.append(print)\ngc.unfreeze()",
    ),
    poison(
        "trace",
        "import sys, threading\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\n"
        "threading.settrace(print)",
    ),
    poison(
        "environment",
        "import os\nos.environ.clear()\nos.environ['EVIL'] = '1'\nos.umask(0)\nos.chdir('/')",
        "ok error",
    ),
    poison(
        "environment_in_c",
        "import ctypes\nctypes.CDLL(None).setenv(b'LD_PRELOAD', b'/evil.so', 1)\n"
        "ctypes.CDLL(None).clearenv()",
    ),
    poison("time_zone", "import os, time\nos.environ['TZ'] = 'Asia/Tokyo'\ntime.tzset()"),
    poison("streams", "import sys\nsys.stdin = sys.stdout = sys.stderr = sys.__stdout__ = None"),
    poison(
        "hooks",
        "import sys, threading\nsys.excepthook = sys.displayhook = sys.breakpointhook = "
        "threading.excepthook = None",
    ),
    poison(
        "codecs",
        "import codecs\ncodecs.register_error('backslashreplace', lambda e: ('EVIL', e.end))\n"
        "codecs.register(lambda n: None)",
    ),
    poison(
        "small_integers",
        "import ctypes\nctypes.c_long.from_address(id(7) + 24).value = 8",
        "ok crashed error",
    ),
    poison("none", "import ctypes\nctypes.memset(id(None), 0, 8)", "ok crashed error"),
    poison(
        "string_table",
        "import ctypes\ns = 'append'\nctypes.memmove(id(s) + 48, b'evilll', 6)",
        "ok crashed error",
    ),
    poison(
        "code_of_library",
        "import json\njson.dumps.__code__ = (lambda *a, **k: 'evil').__code__\nimport os\n"
        "os.listdir = lambda *a: ['evil']",
        "ok error",
    ),
    poison(
        "classes",
        "import collections\ncollections.OrderedDict.update = None\ncollections.namedtuple = None\n"
        "import abc\nabc.ABCMeta.__instancecheck__ = lambda c, i: True",
        "ok error",
    ),
    poison(
        "interpreter_in_c",
        "import ctypes\nctypes.pythonapi.Py_SetRecursionLimit(50)\n"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))",
    ),
    poison("finalized", "import ctypes\nctypes.pythonapi.Py_FinalizeEx()", "ok crashed error"),
    poison(
        "allocator",
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mallopt(-1, 0)\n"
        "for _ in range(50): p = libc.malloc(99)",
    ),
    poison(
        "library_memory",
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "a = ctypes.cast(libc.getpid, ctypes.c_void_p).value & ~4095\n"
        "libc.mprotect(ctypes.c_void_p(a), 4096, 7)\nctypes.memset(a, 0xcc, 4096)",
        "ok crashed error",
    ),
    poison(
        "frozen_modules",
        "import _frozen_importlib as f\nf._find_and_load = None\nf._gcd_import = None",
        "ok error",
    ),
    poison(
        "descriptors",
        "import os\nfor fd in range(3): os.close(fd)\nfor fd in range(120):\n"
        "    try: os.dup2(os.open('/dev/null', 2), fd)\n    except OSError: break",
        "ok error",
    ),
    poison(
        "threads",
        "import threading, time\nfor _ in range(9): threading.Thread(target=time.sleep, args=(99,), "
        "daemon=True).start()\nthreading.main_thread = None",
    ),
    poison(
        "limits",
        "import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (10, 10))\n"
        "r.setrlimit(r.RLIMIT_AS, (r.getrlimit(r.RLIMIT_AS)[0],) * 2)",
    ),
    Case(
        "leave_secret",
        f"x = {MARK!r} * 3\nimport gc\ngc.freeze()\nprint(x, len({MARK!r} * 100_000))\nx",
        out="behind",
    ),
    Case("leave_secret_in_crash", f"x = {MARK!r}\nimport os\nos.abort()", "crashed"),
    Case(
        "leave_secret_in_loop",
        f"x = [{MARK!r}]\nwhile True: x.append(str(len(x)))",
        "timeout_cpu error",
        limits=BUSY,
    ),
    hoard("objects", SCAN),
    hoard("memory", SCAN_MEMORY),
    hoard(
        "descriptors",
        "import os\nfound = []\nfor fd in range(3, 5000):\n    try: os.fstat(fd); found.append(fd)\n"
        "    except OSError: pass\nprint(found)",
    ),
    hoard("frames", FRAMES),
    hoard("globals", "print([n for n in globals() if not n.startswith('__')])"),
    hoard(
        "modules",
        "import sys\nprint([n for n in sys.modules if 'torl' in n or 'inside' in n or n == 'boot'])",
    ),
    hoard("threads", "import threading\nprint(threading.active_count() - 1)"),
    hoard(
        "children",
        "import os\ntry: print(os.waitpid(-1, os.WNOHANG))\nexcept ChildProcessError: print('none')",
    ),
    hoard("signals", "import signal\nprint(signal.sigpending())"),
    hoard("timers", "import signal\nprint([t for t in (0, 1, 2) if signal.getitimer(t)[0]])"),
    Case(
        "look_zygote_objects",
        "import gc, types\nprint([o.co_filename for o in gc.get_objects() if isinstance(o, "
        "types.CodeType)][:3])",
        forbidden="zygote",
    ),
    Case("hash_seed", "print(hash('abc'), {'x', 'y', 'z'})", out=r"^-?\d+ \{'[xyz]'"),
    Case(
        "seeded",
        "import random\nimport numpy as np\nprint(random.random(), float(np.random.rand()))",
        out="^0.8444218515250481 0.5488135039273248$",
    ),
    Case(
        "unseeded",
        "import os, random\nprint(os.urandom(4) != os.urandom(4), random.SystemRandom().random() < 1)",
        out="^True True$",
    ),
    Case(
        "fresh_names",
        "print('leaked' in globals(), 'evil' in dir(__builtins__))\nleaked = 1",
        out="^False False$",
    ),
]
