"""D: files of the host, of the library, and of its own."""

from typing import Any

from .case import ASLEEP, GONE, Case, attempt


def unreadable(name: str, path: str, *, breaks: bool = True) -> Case:
    """A file of the host: absent, or not to be opened."""
    code = f"text = open({path!r}, 'rb').read(200)\nprint('ESC' + 'APED', text)"
    return Case(name, code, "error", err=GONE, breaks="ESCAPED" if breaks else "")


def untouchable(name: str, code: str, setup: str = "import os", **more: Any) -> Case:
    """A change to the world of world.py: it fails, and nothing has changed."""
    more = {"out": "Error|refused", "breaks": "ESCAPED|host:", "alone": True, **more}
    return Case(name, attempt(code, setup), **more)


BAD_LINK = "import os\nos.symlink('@DIR@/answers.json', 'l')\nprint(open('l').read())"
SEARCH = """
import os
found = []
for folder, folders, files in os.walk('/'):
    for name in files + folders:
        if name in ('answers.json', 'owned.txt', 'shadow', 'passwd', 'id_rsa', 'authorized_keys'):
            try:
                open(os.path.join(folder, name)).read(1)
                found.append(os.path.join(folder, name))
            except OSError: pass
    folders[:] = [f for f in folders if f not in ('proc', 'sys', 'site-packages')]
print(found)
"""
REOPENED = """
import os
fd = os.open('@DIR@/answers.json', os.O_PATH)
print('ESC' + 'APED', open(f'/proc/self/fd/{fd}').read())
"""
LINKS = """
import os
for name in ('exe', 'cwd', 'root', 'fd/0', 'fd/1', 'ns/net'):
    try: print('ESC' + 'APED', os.readlink(f'/proc/@TRAINER@/{name}'))
    except OSError as e: print(type(e).__name__)
"""
KNOWN = "import os\ntry: os.{call}('@DIR@'); print('ESC' + 'APED')\nexcept OSError as e: print(type(e))"
IN_B: dict[str, Any] = {"B": {"out": "", "forbidden": "^$"}}  # existence can be seen
OTHERS = """
import os
near = {*range(1, 3000), *range(@TRAINER@ - 400, @TRAINER@ + 2000), @PID@, os.getppid()}
for pid in near - {os.getpid()}:
    for fd in range(12):
        try:
            os.close(os.open(f'/proc/{pid}/fd/{fd}', os.O_RDWR | os.O_NONBLOCK))
            print('ESC' + 'APED', pid, fd)
        except FileNotFoundError: break
        except OSError: pass
print('done')
"""
ESCAPE_BY_DIRECTORY = """
import os
for up in ('..', '../..', '/', '/proc/1/root', '/proc/self/root', '/proc/self/cwd/..', '/dev/fd/0/..'):
    try:
        folder = os.open(up, os.O_RDONLY | os.O_DIRECTORY)
        fd = os.open('@DIR@/answers.json'.lstrip('/'), os.O_RDONLY, dir_fd=folder)
        print('ESC' + 'APED', up, os.read(fd, 99))
    except OSError as e: print(type(e).__name__)
"""
EVERY_DESCRIPTOR = """
import os
for fd in range(1100):
    for path in ('@DIR@/answers.json'[1:], '..@DIR@/answers.json', '../../../../..@DIR@/answers.json'):
        try: print('ESC' + 'APED', fd, os.read(os.open(path, os.O_RDONLY, dir_fd=fd), 99))
        except OSError: pass
print('done')
"""
WRITABLE = """
import os
found = []
for folder, folders, files in os.walk('/'):
    if folder.startswith(('/proc', '/sys', '/box')): folders.clear(); continue
    try:
        fd = os.open(folder + '/torl-x', os.O_CREAT | os.O_WRONLY, 0o600)
        os.unlink(folder + '/torl-x'); found.append(folder)
    except OSError: pass
    if folder.count('/') > 2: folders.clear()
print(found)
"""

CASES = [
    # secrets
    unreadable("read_passwd", "/etc/passwd"),
    unreadable("read_shadow", "/etc/shadow", breaks=False),
    unreadable("read_hosts", "/etc/hosts", breaks=False),
    unreadable("read_answers", "@DIR@/answers.json"),
    unreadable("read_answers_dotted", "/usr/../@DIR@/./drop/../answers.json"),
    unreadable("read_answers_from_root", "/proc/1/root@DIR@/answers.json", breaks=False),
    unreadable("read_answers_by_trainer", "/proc/@TRAINER@/root@DIR@/answers.json"),
    unreadable("read_answers_by_cwd", "/proc/self/cwd/@DIR@/answers.json"),
    unreadable("read_environ_of_trainer", "/proc/@TRAINER@/environ"),
    unreadable("read_environ_of_process", "/proc/@PID@/environ"),
    unreadable("read_environ_of_parent", "/proc/1/environ", breaks=False),
    unreadable("read_memory_of_process", "/proc/@PID@/maps"),
    unreadable("read_own_environ", "/proc/self/environ", breaks=False),
    unreadable("read_own_maps", "/proc/self/maps"),
    unreadable("read_command_lines", "/proc/@TRAINER@/cmdline"),
    unreadable("read_kernel_log", "/dev/kmsg", breaks=False),
    unreadable("read_disk", "/dev/vda", breaks=False),
    unreadable("read_memory_device", "/dev/mem", breaks=False),
    unreadable("read_terminal", "/dev/tty", breaks=False),
    unreadable("read_sys", "/sys/kernel/notes", breaks=False),
    unreadable("read_meminfo", "/proc/meminfo"),
    unreadable("read_mounts", "/proc/self/mountinfo"),
    Case("read_stdin_again", "print(open('/proc/self/fd/0').read())", "ok error", forbidden="."),
    Case("read_stdout_again", "open('/proc/self/fd/1', 'rb').read()", "error timeout_wall", limits=ASLEEP),
    Case("read_answers_reopened", REOPENED, "error", err=GONE, breaks="ESCAPED"),
    Case("links_of_trainer", LINKS, out="Error", breaks="ESCAPED"),
    Case(
        "folder_entered",
        KNOWN.format(call="chdir"),
        out="Error",
        tiers=IN_B,
        breaks="ESCAPED",
    ),
    Case(
        "folder_measured",
        KNOWN.format(call="statvfs"),
        out="Error",
        tiers=IN_B,
        breaks="ESCAPED",
    ),
    Case("descriptors_of_others", OTHERS, out=r"\Adone$", breaks="ESCAPED"),
    Case(
        "read_answers_by_map",
        "import mmap, os\nf = os.open('@DIR@/answers.json', os.O_RDONLY)\n"
        "print('ESC' + 'APED', mmap.mmap(f, 0, prot=1)[:])",
        "error",
        err=GONE,
        breaks="ESCAPED",
    ),
    Case(
        "read_answers_by_numpy",
        "import numpy as np\nprint('ESC' + 'APED', bytes(np.fromfile('@DIR@/answers.json', 'u1')))",
        "error",
        err=GONE,
        breaks="ESCAPED",
    ),
    Case(
        "read_answers_in_c",
        "import ctypes\nlibc = ctypes.CDLL(None)\nf = libc.open(b'@DIR@/answers.json', 0)\n"
        "b = ctypes.create_string_buffer(99)\nprint(libc.read(f, b, 99), b.value)",
        out="^-1 b''$",
        breaks="torl-secret",
    ),
    Case(
        "read_answers_by_import",
        "import sys\nsys.path.insert(0, '@DIR@')\nimport answers",
        "error",
        err="No module named",
    ),
    Case(
        "read_answers_by_loader",
        "import importlib.machinery as m\nm.SourceFileLoader('a', "
        "'@DIR@/answers.json').get_data('@DIR@/answers.json')",
        "error",
        err=GONE,
    ),
    Case(
        "read_answers_by_dlopen", "import ctypes\nctypes.CDLL('@DIR@/answers.json')", "error", err="OSError"
    ),
    Case(
        "read_answers_by_sqlite",
        "import sqlite3\nsqlite3.connect('file:@DIR@/answers.json?mode=ro', "
        "uri=True).execute('select * from x')",
        "error",
        err="Error",
    ),
    Case(
        "read_answers_by_linecache",
        "import linecache\nprint(linecache.getlines('@DIR@/answers.json'))",
        out=r"^\[\]$",
        breaks="torl-secret",
    ),
    Case("read_answers_by_link", BAD_LINK, "error", err=GONE),
    Case(
        "read_answers_in_place", "print(open('@DIR@/../torl-host/answers.json').read())", "error", err=GONE
    ),
    Case("search", SEARCH, out=r"^\[\]$", limits={"cpu_s": 5.0}),
    Case(
        "list_root_of_host",
        "import os\nprint(len(os.listdir('/tmp')), len(os.listdir('/home')))",
        "ok error",
        forbidden="torl-host",
        out="",
        tiers={"AC": {"want": "error", "err": "home"}},
    ),
    Case(
        "list_processes", attempt("os.listdir('/proc/@PID@')", "import os"), out="Error", breaks="ESCAPED"
    ),
    Case(
        "list_descriptors",
        attempt("os.listdir('/proc/self/fd')", "import os"),
        out="Error",
        breaks="ESCAPED",
    ),
    Case("by_directory", ESCAPE_BY_DIRECTORY, out="Error", breaks="ESCAPED"),
    Case("by_every_descriptor", EVERY_DESCRIPTOR, out=r"\Adone$"),
    Case(
        "environment",
        "import os, sys\nprint(dict(os.environ), sys.argv, sys.orig_argv)",
        out="PYTHONHASHSEED",
        forbidden="KEY|torl|work|SECRET",
    ),
    Case(
        "environment_in_c",
        "import ctypes\ne = ctypes.c_void_p.in_dll(ctypes.CDLL(None), 'environ')\nprint(bool(e))",
        out="True",
    ),
    Case("no_torl", "import torl.sandbox", "error", err="No module named 'torl'"),
    Case("no_tests", "import tests.hostile", "error", err="No module named|Error"),
    Case(
        "path",  # the standard library and the tools' packages, wherever the checkout is
        "import re, sys\n"
        "print([p for p in sys.path if not re.search(r'/(python[^/]*|[a-z]+-[a-z]+)$', p)])",
        out=r"^\[\]$",
    ),
    # changes
    untouchable("write_host", "open('@DIR@/owned.txt', 'w').write('x')"),
    untouchable("append_host", "open('@DIR@/owned.txt', 'a').write('x')"),
    untouchable("create_on_host", "open('@DIR@/drop/new', 'x').close()"),
    untouchable(
        "create_in_c",
        "assert ctypes.CDLL(None).creat(b'@DIR@/drop/new', 0o666) >= 0, 'refused'",
        "import ctypes",
    ),
    untouchable("temporary_on_host", "os.open('@DIR@/drop', os.O_TMPFILE | os.O_RDWR)"),
    untouchable("folder_on_host", "os.mkdir('@DIR@/drop/new')"),
    untouchable("fifo_on_host", "os.mkfifo('@DIR@/drop/new')"),
    untouchable("socket_on_host", "os.mknod('@DIR@/drop/new', 0o140777)"),
    untouchable("link_on_host", "os.symlink('/', '@DIR@/drop/new')"),
    untouchable("hard_link_on_host", "os.link('@DIR@/owned.txt', '@DIR@/drop/new')"),
    untouchable("truncate_host", "os.truncate('@DIR@/owned.txt', 0)"),
    untouchable("truncate_by_open", "os.open('@DIR@/owned.txt', os.O_RDONLY | os.O_TRUNC)"),
    untouchable("unlink_host", "os.unlink('@DIR@/owned.txt')"),
    untouchable("rename_host", "os.rename('@DIR@/owned.txt', '@DIR@/drop/o')"),
    untouchable(
        "exchange_host",
        "assert ctypes.CDLL(None).renameat2(-100, b'@DIR@/owned.txt', -100, b'@DIR@/answers.json', "
        "2) == 0, 'refused'",
        "import ctypes",
    ),
    untouchable("rmdir_host", "os.rmdir('@DIR@/drop')"),
    untouchable("remove_tree_of_host", "shutil.rmtree('@DIR@/drop')", "import shutil"),
    untouchable("chmod_host", "os.chmod('@DIR@/script.sh', 0o777)"),
    untouchable("chmod_set_user", "os.chmod('@DIR@/script.sh', 0o6755)"),
    untouchable(
        "chmod_at",
        "assert ctypes.CDLL(None).fchmodat(-100, b'@DIR@/script.sh', 0o777, 0) == 0, 'refused'",
        "import ctypes",
    ),
    untouchable(
        "chmod_at_2",
        "assert ctypes.CDLL(None).syscall(452, -100, b'@DIR@/script.sh', 0o777, 0) == 0, 'refused'",
        "import ctypes",
    ),
    untouchable("times_of_host", "os.utime('@DIR@/script.sh', (1, 1))"),
    untouchable(
        "times_of_host_now",
        "assert ctypes.CDLL(None).utime(b'@DIR@/owned.txt', None) == 0, 'refused'",
        "import ctypes",
    ),
    untouchable("owner_of_host", "os.chown('@DIR@/script.sh', os.getuid(), -1)"),
    untouchable("attribute_of_host", "os.setxattr('@DIR@/owned.txt', 'user.x', b'x')"),
    untouchable("attributes_read", "os.listxattr('@DIR@/owned.txt')"),
    untouchable("allocate_host", "os.posix_fallocate(os.open('@DIR@/owned.txt', os.O_WRONLY), 0, 999)"),
    untouchable(
        "map_host", "mmap.mmap(os.open('@DIR@/owned.txt', os.O_RDWR), 0)[0] = 88", "import mmap, os"
    ),
    untouchable("chdir_host", "os.chdir('@DIR@'); open('owned.txt', 'w').write('x')"),
    untouchable("lock_host", "fcntl.flock(os.open('@DIR@/owned.txt', os.O_RDONLY), 2)", "import fcntl, os"),
    untouchable("memory_of_process", "f = os.open('/proc/@PID@/mem', os.O_RDWR)"),
    untouchable("memory_of_trainer", "f = os.open('/proc/@TRAINER@/mem', os.O_RDWR)"),
    untouchable("oom_score_of_process", "open('/proc/@PID@/oom_score_adj', 'w').write('1000')"),
    Case(
        "oom_score_own",
        attempt("open('/proc/self/oom_score_adj', 'w').write('1000')"),
        out="Error",
        breaks="ESCAPED",
    ),
    Case("kernel_settings", attempt("open('/proc/sys/kernel/core_pattern', 'w')"), out="Error"),
    Case("id_maps", attempt("open('/proc/self/uid_map', 'w').write('0 0 1')"), out="Error"),
    Case("write_tmp", attempt("open('/tmp/torl-x', 'x')"), out="Error"),
    Case(
        "write_shm",
        attempt("open('/dev/shm/torl-x', 'x')"),
        out="Error",
        breaks="ESCAPED|host:",
        alone=True,
    ),
    Case("write_home", attempt("open(os.path.expanduser('~root/torl-x'), 'x')", "import os"), out="Error"),
    Case("writable_folders", WRITABLE, out=r"^\[\]$"),
]
