"""G: the standard library, as programs use it."""

from typing import Any

from .case import Case

NOT_PRELOADED: dict[str, Any] = {"D": {"want": "ok error", "out": ""}}  # files cannot be opened there
LAZY = """
import xml.dom.minidom, sqlite3, difflib, wave, html.parser, configparser, email.message, tomllib, zipapp
import concurrent.futures, ctypes.util, curses.ascii, json.tool, logging.handlers, unittest.mock
import xmlrpc.client, urllib.request, http.client, importlib.metadata, wsgiref.util, multiprocessing.pool
print('imported')
"""
EVERY_LIBRARY = """
import importlib
bad = []
for n in '''
argparse array bz2 calendar chunk cmd code codeop colorsys csv ctypes dbm dis doctest fileinput
filecmp fnmatch getopt gettext glob graphlib gzip hashlib hmac imaplib ipaddress keyword lzma
mailbox mimetypes modulefinder netrc optparse pdb pkgutil plistlib poplib posixpath pprint profile
pstats pyclbr pydoc quopri reprlib rlcompleter runpy sched select shelve shlex shutil smtplib sndhdr
socketserver ssl sre_compile stringprep symtable tabnanny tarfile timeit token trace tracemalloc tty
unittest uuid wsgiref xmlrpc zlib zoneinfo
'''.split():
    try: importlib.import_module(n)
    except Exception as e: bad.append((n, str(e)))
print([b for b in bad if 'No module' not in b[1]])
"""


def prints(name: str, code: str, out: str, **more: Any) -> Case:
    return Case(name, code, out=out, **more)


CASES = [
    prints(
        "decimal",
        "from decimal import *\ngetcontext().prec = 50\n"
        "print(Decimal(2).sqrt(), Decimal('0.1') + Decimal('0.2'))",
        r"1\.414213562373095048801688724209698078569671875376\d+ 0\.3",
    ),
    prints(
        "fractions",
        "from fractions import Fraction as F\nprint(F(3, 7) + F('0.25'), F(0.1).limit_denominator(100))",
        "19/28 1/10",
    ),
    prints(
        "statistics",
        "from statistics import *\nprint(mean([1, 2, 3]), stdev([1, 2, 3]), median([1, 9]))",
        r"2 1\.0 5\.0",
    ),
    prints(
        "math",
        "import math\nprint(math.comb(50, 25), math.isqrt(10**40), math.lcm(4, 6), "
        "math.prod(range(1, 6)), math.dist((0, 0), (3, 4)))",
        r"126410606437752 100000000000000000000 12 120 5\.0",
    ),
    prints("cmath", "import cmath\nprint(cmath.exp(1j * cmath.pi).real, abs(3 + 4j))", r"-1\.0 5\.0"),
    prints("big_integers", "print(len(str(2**10_000)), pow(3, 10**6, 1_000_007), 10**50 // 7)", "^3011 "),
    prints(
        "big_digits_allowed",
        "import sys\nsys.set_int_max_str_digits(0)\nprint(len(str(2**100_000)))",
        "^30103$",
    ),
    prints(
        "floats",
        "print(0.1 + 0.2, 1e308 * 10, float('nan') != float('nan'), round(2.5), (2.5).hex(), "
        "f'{1e6:,.2f}')",
        r"0\.30000000000000004 inf True 2 0x1\.4",
    ),
    prints(
        "bits",
        "print(bin(10), hex(255), (5).bit_length(), int.from_bytes(b'\\1\\0', 'big'), "
        "(1).to_bytes(2, 'little'))",
        "0b1010 0xff 3 256",
    ),
    prints(
        "strings",
        "print('a,b'.split(','), 'x'.join('ab'), 'ß'.upper(), '%05.1f' % 3.14, 'ab'[::-1], "
        "'{:>5}'.format(3))",
        "SS 003.1 ba     3",
    ),
    prints("textwrap", "import textwrap\nprint(textwrap.fill('a b c d', 3))", "a b\nc d"),
    prints(
        "regex",
        "import re\nprint(re.findall(r'(\\d+)-(\\w)', '1-a 22-b'), re.sub('a', 'b', 'aa'))",
        r"\[\('1', 'a'\), \('22', 'b'\)\] bb",
    ),
    prints(
        "datetime",
        "from datetime import *\nprint(date(2024, 2, 29) + timedelta(365), datetime(2020, 1, 1, "
        "tzinfo=timezone.utc).isoformat())",
        "2025-02-28 2020-01-01T00:00:00",
    ),
    prints(
        "zoneinfo",
        "from datetime import datetime\nfrom zoneinfo import ZoneInfo\n"
        "print(datetime(2024, 7, 1, tzinfo=ZoneInfo('Europe/Paris')).utcoffset())",
        "2:00:00",
        tiers=NOT_PRELOADED,
    ),
    prints(
        "calendar",
        "import calendar\nprint(calendar.monthrange(2024, 2), calendar.isleap(1900))",
        r"29\) False",
    ),
    prints(
        "time",
        "import time\na = time.perf_counter(), time.time(), time.monotonic(), time.process_time()\n"
        "time.sleep(0.01)\nprint(time.perf_counter() > a[0], time.strftime('%Z', time.localtime(0)), "
        "min(a) >= 0)",
        "True UTC True",
    ),
    prints("timeit", "import timeit\nprint(timeit.timeit('1 + 1', number=100) < 1)", "True"),
    prints(
        "json",
        "import json\nprint(json.dumps({'é': [1, None, True]}, ensure_ascii=False), json.loads('[1e3]'))",
        r'\{"é": \[1, null, true\]\} \[1000\.0\]',
    ),
    prints(
        "csv_string",
        "import csv, io\nprint(list(csv.DictReader(io.StringIO('a,b\\n1,2'))))",
        r"\{'a': '1', 'b': '2'\}",
    ),
    prints(
        "struct",
        "import struct\nprint(struct.pack('<IH', 1, 2), struct.unpack('d', bytes(8)))",
        r"\(0\.0,\)",
    ),
    prints(
        "hashlib",
        "import hashlib\nprint(hashlib.sha256(b'').hexdigest()[:8], hashlib.md5(b'').hexdigest()[:4])",
        "e3b0c442 d41d",
    ),
    prints(
        "compression",
        "import bz2, gzip, lzma, zlib\nd = b'x' * 999\n"
        "print([len(m.decompress(m.compress(d))) for m in (bz2, gzip, lzma, zlib)])",
        r"\[999, 999, 999, 999\]",
    ),
    prints(
        "sqlite_in_memory",
        "import sqlite3\nd = sqlite3.connect(':memory:')\nprint(d.execute('select 1 + 1').fetchone())",
        r"\(2,\)",
    ),
    prints(
        "heap",
        "import bisect, heapq\nh = [3, 1, 2]\nheapq.heapify(h)\n"
        "print(heapq.heappop(h), bisect.bisect([1, 2], 1.5))",
        "1 1",
    ),
    prints(
        "random",
        "import random\nrandom.seed(42)\nprint(random.randint(1, 100), random.choice('abc'), "
        "random.sample(range(9), 2), round(random.gauss(0, 1), 3))",
        "^82 a",
    ),
    prints(
        "secrets", "import secrets, uuid\nprint(len(secrets.token_hex(4)), uuid.uuid4().version)", "8 4"
    ),
    prints(
        "logging",
        "import logging, sys\nlogging.basicConfig(level='INFO', stream=sys.stdout, format='%(name)s "
        "%(message)s')\nlogging.getLogger('a').info('b')",
        "^a b$",
    ),
    prints(
        "argparse",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int, default=3)\n"
        "print(p.parse_args([]).n, p.parse_args().n)",
        "3 3",
    ),
    prints(
        "unittest",
        "import sys, unittest\nclass T(unittest.TestCase):\n"
        "    def test_a(self): self.assertEqual(1, 1)\n"
        "unittest.main(argv=['x'], exit=False, testRunner=unittest.TextTestRunner(stream=sys.stdout))",
        "OK",
    ),
    prints(
        "doctest",
        "def f(x):\n    '''\n    >>> f(2)\n    4\n    '''\n    return x * x\nimport doctest\n"
        "print(doctest.testmod())",
        r"failed=0, attempted=1",
    ),
    prints(
        "profile",
        "import cProfile, io, pstats\np = cProfile.Profile()\np.runcall(sum, [1])\n"
        "print(pstats.Stats(p, stream=io.StringIO()).total_calls > 0)",
        "True",
    ),
    prints(
        "tracemalloc",
        "import tracemalloc\ntracemalloc.start()\nx = [0] * 1000\n"
        "print(tracemalloc.get_traced_memory()[0] > 1000)",
        "True",
    ),
    prints("dis", "import dis\ndis.dis(lambda: 1)", "RETURN_"),
    prints(
        "ast",
        "import ast\nprint(ast.literal_eval('[1, (2,)]'), ast.unparse(ast.parse('x=1')), eval('1+1'))",
        r"\[1, \(2,\)\] x = 1 2",
    ),
    prints("exec", "exec('y = 5')\nprint(y, compile('1', 's', 'eval').co_filename)", "5 s"),
    prints(
        "ctypes", "import ctypes\nprint(ctypes.CDLL(None).abs(-3), ctypes.sizeof(ctypes.c_double))", "3 8"
    ),
    prints(
        "os_questions",
        "import os\nprint(os.cpu_count() > 0, os.getpid() > 0, os.name, os.sep, "
        "isinstance(os.getcwd(), str), os.path.join('a', 'b'))",
        "True True posix / True a/b",
    ),
    prints(
        "platform",
        "import platform, sys\nprint(platform.system(), platform.python_version() == "
        "sys.version.split()[0], sys.byteorder)",
        "Linux True",
    ),
    prints(
        "pathlib",
        "from pathlib import Path\nprint(Path('a') / 'b', Path('x.tar.gz').suffixes, "
        "Path('nope').exists())",
        r"a/b \['.tar', '.gz'\] False",
    ),
    prints(
        "shutil",
        "import shutil\nprint(shutil.get_terminal_size().columns, shutil.which('no-such-thing'))",
        "80 None",
    ),
    prints(
        "locale",
        "import locale\nprint(locale.getpreferredencoding().lower(), locale.str(1.5))",
        r"utf-8 1\.5",
    ),
    prints(
        "unicode",
        "import unicodedata\nπ = 3\nprint(π, unicodedata.name('é'), 'ｆ'.isidentifier(), '日本'.encode())",
        "3 LATIN SMALL LETTER E WITH ACUTE True",
    ),
    prints(
        "warnings_caught",
        "import warnings\nwith warnings.catch_warnings(record=True) as w:\n"
        "    warnings.simplefilter('always')\n    warnings.warn('x')\nprint(len(w))",
        "^1$",
    ),
    prints(
        "deletion",
        "x = [1, 2, 3]\ndel x[0], x[0]\nprint(x)\ndel x\ntry: x\nexcept NameError as e: print(e)",
        "name 'x' is not defined",
    ),
    prints(
        "global_main",
        "import __main__, sys\nx = 5\nprint(__main__.x, sys.modules['__main__'].x, __name__, "
        "globals()['x'])",
        "5 5 __main__ 5",
    ),
    prints(
        "file_name",
        "import os\nprint(os.path.basename(__file__), os.path.dirname(os.path.abspath(__file__)) in "
        "('/', '/box'))",
        "snippet.py True",
    ),
    prints(
        "future",
        "from __future__ import annotations\ndef f(x: Unknown): pass\nprint(f.__annotations__)",
        r"\{'x': 'Unknown'\}",
    ),
    prints("docstring_first", "'''what this does'''\nprint(1)", "^1$"),
    prints("module_docstring", "'''what this does'''\nprint(__doc__)", "what this does|None"),
    prints("exit_function", "print('x')\nexit()", "^x$"),
    prints("quit_function", "print('x')\nquit(0)", "^x$"),
    prints("help_function", "help(len)", "len"),
    prints("breakpoint", "import sys\nsys.breakpointhook = lambda: print('broke')\nbreakpoint()", "broke"),
    prints(
        "stdin_given", "a, b = map(int, input().split())\nprint(a + b, input())", "^3 x$", stdin="1 2\nx\n"
    ),
    prints(
        "stdin_lines", "import sys\nprint([l.strip() for l in sys.stdin])", r"\['a', 'é'\]", stdin="a\né\n"
    ),
    prints("stdin_read", "import sys\nprint(repr(sys.stdin.read()))", "^''$"),
    prints("lazy_imports", LAZY, "^imported$"),
    prints("library_imports", EVERY_LIBRARY, r"^\[\]$"),
    prints(
        "old_printing",
        "from pprint import pprint\npprint({'a': list(range(40))}, compact=True, width=60)",
        r"39\]\}",
    ),
]
