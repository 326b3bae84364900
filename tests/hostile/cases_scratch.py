"""D: files of the library, and its own."""

from typing import Any

from .case import DENIED, GONE, Case, attempt

NOT_IN_BOX: dict[str, Any] = {
    "BD": {
        "want": "error",
        "out": "",
        "value": "",
        "err": rf"{DENIED}|No usable temporary directory|unable to open",
    }
}
LIBRARY = "import os, sympy\nhere = os.path.dirname(os.path.dirname(sympy.__file__))"
CHROOT_BREAK = """
import os
root = os.open('/', os.O_RDONLY)
os.mkdir('jail')
os.chroot('jail')
os.fchdir(root)
for _ in range(64): os.chdir('..')
os.chroot('.')
print('ESC' + 'APED', os.listdir('.'))
"""
RUN_OWN = """
import os
open('prog', 'w').write('#!/bin/sh\\necho ESC''APED\\n')
os.chmod('prog', 0o755)
os.execv('./prog', ['./prog'])
"""
LOAD_OWN = """
import ctypes, shutil, sysconfig, glob, os
library = (glob.glob('/lib/*/libm.so.6') + glob.glob('/usr/lib*/libm.so.6'))[0]
shutil.copy(library, 'libown.so')
print(ctypes.CDLL('./libown.so').floor)
"""
DEEP = "import os\nfor _ in range(300): os.mkdir('d' * 200); os.chdir('d' * 200)\nprint(os.listdir('.'))"


def own(name: str, code: str, out: str = "", **more: Any) -> Case:
    """Works where there is a scratch directory, and is a plain error elsewhere."""
    return Case(name, code, out=out, tiers=NOT_IN_BOX, **more)


CASES = [
    # the library
    Case("library_module", LIBRARY + "\nopen(here + '/evil.py', 'x').write('evil')", "error", err=DENIED),
    Case(
        "library_changed",
        LIBRARY + "\nopen(here + '/sympy/__init__.py', 'a').write('evil')",
        "error",
        err=DENIED,
    ),
    Case(
        "library_customized",
        LIBRARY + "\nopen(here + '/sitecustomize.py', 'x').write('evil')",
        "error",
        err=DENIED,
    ),
    Case(
        "library_path_file",
        LIBRARY + "\nopen(here + '/evil.pth', 'x').write('import evil')",
        "error",
        err=DENIED,
    ),
    Case(
        "library_cache",
        LIBRARY + "\nimport py_compile\nprint(py_compile.compile(here + '/sympy/abc.py', doraise=True))",
        "error",
        err="Error",
    ),
    Case("library_removed", LIBRARY + "\nos.unlink(here + '/sympy/abc.py')", "error", err=DENIED),
    Case("library_mode", LIBRARY + "\nos.chmod(here + '/sympy', 0o777)", "error", err=DENIED),
    Case(
        "library_interpreter",
        "import sys\nopen(sys.executable, 'r+b')",
        "error",
        err=rf"{GONE}|IsADirectory|busy",
    ),
    Case(
        "library_remounted",
        attempt(
            "assert ctypes.CDLL(None).mount(b'none', b'/', None, 32, None) == 0, 'refused'", "import ctypes"
        ),
        out="refused",
    ),
    # its own files
    Case(
        "read_answers_by_hard_link",
        attempt("os.link('@DIR@/answers.json', 'h'); print(open('h').read())", "import os"),
        out="Error",
    ),
    own("scratch_file", "open('a.txt', 'w').write('hi')\nprint(open('a.txt').read())", "^hi$"),
    own(
        "scratch_tree",
        "import os\nos.makedirs('a/b/c')\nopen('a/b/c/f', 'w').close()\nprint(sorted(os.walk('.'))[-1][2])",
        r"^\['f'\]$",
    ),
    own(
        "scratch_temporary",
        "import tempfile\nwith tempfile.TemporaryDirectory() as d:\n"
        "    open(d + '/x', 'w').write('y')\n    print(open(d + '/x').read())",
        "^y$",
    ),
    own(
        "scratch_named_temporary",
        "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f:\n"
        "    n = f.write('q'); f.seek(0)\n    print(f.read())",
        "^q$",
    ),
    own(
        "scratch_csv",
        "import csv\nwith open('t.csv', 'w', newline='') as f: csv.writer(f).writerows([[1, 2]])\n"
        "print(open('t.csv').read())",
        "^1,2",
    ),
    own(
        "scratch_sqlite",
        "import sqlite3\nd = sqlite3.connect('d.db')\nd.execute('create table t (x)')\n"
        "d.execute('insert into t values (4)')\nd.commit()\n"
        "print(d.execute('select * from t').fetchall())",
        r"^\[\(4,\)\]$",
    ),
    own(
        "scratch_pickle",
        "import pickle\npickle.dump([1], open('p', 'wb'))\nprint(pickle.load(open('p', 'rb')))",
        r"^\[1\]$",
    ),
    own(
        "scratch_numpy",
        "import numpy as np\nnp.save('a.npy', np.arange(3))\nprint(np.load('a.npy'))",
        r"^\[0 1 2\]$",
    ),
    own(
        "scratch_module",
        "import sys\nopen('mine.py', 'w').write('x = 7')\nsys.path.insert(0, '.')\nimport mine\n"
        "print(mine.x)",
        "^7$",
    ),
    own(
        "scratch_zip",
        "import zipfile\nzipfile.ZipFile('z.zip', 'w').writestr('a', 'b')\n"
        "print(zipfile.ZipFile('z.zip').namelist())",
        r"^\['a'\]$",
    ),
    own(
        "scratch_fresh",
        "import os\nopen('left-over', 'w').close()\nprint(os.listdir('.'))",
        r"^\['left-over'\]$",
    ),
    own("scratch_mode", "import os\nopen('s', 'w').close()\nos.chmod('s', 0o6777)\nprint('set')", "^set$"),
    own(
        "scratch_removed_under_it",
        "import os, shutil\nos.mkdir('d'); os.chdir('d'); os.rmdir('../d')\ntry: os.getcwd()\n"
        "except FileNotFoundError: print('gone')",
        "^gone$",
    ),
    own("scratch_deep", DEEP, r"^\[\]$"),
    own(
        "scratch_names",
        "import os\nopen('\\u00e9\\n\\udc80', 'w').close()\nprint(len(os.listdir('.')))",
        "^1$",
    ),
    Case("scratch_program", RUN_OWN, "error", err="Error"),
    Case("scratch_library", LOAD_OWN, "error", err="Error"),
    Case("scratch_device", attempt("os.mknod('n', 0o20666, os.makedev(1, 3))", "import os"), out="Error"),
    Case("scratch_chroot", CHROOT_BREAK, "error", err=DENIED),
    Case(
        "scratch_mount_over",
        attempt(
            "assert ctypes.CDLL(None).mount(b'x', b'.', b'tmpfs', 0, None) == 0, 'refused'", "import ctypes"
        ),
        out="refused",
    ),
    Case(
        "device_null",
        "open('/dev/null', 'w').write('x')\nprint('fine')",
        out="^fine$",
        tiers={"D": {"want": "error", "out": ""}},
    ),
    Case("device_times", attempt("os.utime('/dev/null')", "import os"), out="Error"),
    Case("device_mode", attempt("os.chmod('/dev/null', 0o666)", "import os"), out="Error"),
    Case(
        "device_zero",
        "print(open('/dev/zero', 'rb').read(2))",
        out="x00",
        tiers={"D": {"want": "error", "out": ""}},
    ),
    Case("device_random", "import os\nprint(len(os.urandom(8)))", out="^8$"),
    Case(
        "look_at_host",
        "import os\nprint(os.path.exists('@DIR@/answers.json'), os.path.getsize('@DIR@/answers.json'))",
        "error",
        err="No such",
        tiers={"B": {"want": "ok", "err": ""}},
        breaks="True",
    ),
]
