"""What the sandbox gives back, and what the code in it can see."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sandbox_kit import run

from torl.sandbox.capture import Capture
from torl.sandbox.scratch import remove_scratch


@pytest.fixture(autouse=True)
def scratch_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scratch directories are made here, so that a test sees what is left of them."""
    root = tmp_path / "scratch"
    root.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    return root


# --- what comes back ------------------------------------------------------------------------


def test_output_and_measurements() -> None:
    result = run("print(12 * 31)")
    assert (result.status, result.exit_code, result.signal) == ("ok", 0, None)
    assert (result.stdout, result.stderr) == ("372\n", "")
    assert (result.stdout_bytes, result.stdout_cut, result.stderr_bytes) == (4, 0, 0)
    assert 0 <= result.queue_s < 20
    assert 0 < result.run_s < 20
    assert 0 < result.cpu_s < 20


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("12 * 31", "372\n"),
        ("x = 3\nx", "3\n"),
        ("print('a')\n'b'", "a\n'b'\n"),
        ("None", ""),
        ("print(1)", "1\n"),
        ("x = 3", ""),
        ("'just text'", "'just text'\n"),
        ("if True:\n    5", ""),
        ("[i for i in range(3)]  # a comment", "[0, 1, 2]\n"),
        ("", ""),
        ("# nothing", ""),
    ],
)
def test_a_final_expression_is_shown_as_in_a_notebook(code: str, shown: str) -> None:
    result = run(code)
    assert (result.status, result.stdout) == ("ok", shown)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("if __name__ == '__main__':\n    print('main')", "main\n"),
        ("\ufeffprint(1)\r\nprint(2)\r\n", "1\n2\n"),
        ("print(1)\rprint(2)", "1\n2\n"),
        ("if 1:\n\tprint('tab')", "tab\n"),
        ("α = 3; print(α**2, 'naïve ✓')", "9 naïve ✓\n"),
        ("from __future__ import annotations\ndef f(x: Q): pass\nf.__annotations__", "{'x': 'Q'}\n"),
        ("def f(): return 1\nimport inspect\nprint(inspect.getsource(f))", "def f(): return 1\n\n"),
        (
            "import pickle\nclass P: x = 1\nprint(pickle.loads(pickle.dumps(P)).x, P.__module__)",
            "1 __main__\n",
        ),
        ("import asyncio\nasync def m(): print('async')\nasyncio.run(m())", "async\n"),
        (
            "import threading\nt = threading.Thread(target=print, args=('t',)); t.start(); t.join()",
            "t\n",
        ),
        ("import locale; print(locale.getpreferredencoding().lower())", "utf-8\n"),
        ("import sys; print(sys.argv)", "['snippet.py']\n"),
        ("open('a.txt', 'w').write('hi'); print(open('a.txt').read())", "hi\n"),
        ("import os; os.write(1, b'raw\\n'); print('py')", "raw\npy\n"),
        ("import sys; n = sys.stdout.buffer.write(b'caf\\xe9 \\xff ok')", "caf� � ok"),
        ("print('a\\x00b')", "a\x00b\n"),
        ("print('\\ud800')", "\\ud800\n"),
        ("import sys; print(sys.stdin.read() == '')", "True\n"),
        ("import atexit\nr = atexit.register(print, 'bye')\nprint('hi')", "hi\nbye\n"),
    ],
)
def test_ordinary_programs_work(code: str, shown: str) -> None:
    result = run(code)
    assert (result.status, result.stdout, result.stderr) == ("ok", shown, "")


@pytest.mark.parametrize(
    ("code", "exit_code", "last"),
    [
        ("print('before')\n1/0", 1, "ZeroDivisionError: division by zero"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
        ("raise BaseException('b')", 1, "BaseException: b"),
        ("input('n? ')", 1, "EOFError: EOF when reading a line"),
        ("print('a'", 1, "SyntaxError: '(' was never closed"),
        ("print(1)\x00", 1, "SyntaxError: source code string cannot contain null bytes"),
        ("if 1:\n\tx=1\n        y=2", 1, "TabError: inconsistent use of tabs and spaces in indentation"),
        ("import no_such_thing", 1, "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def f(n): return f(n + 1)\nf(0)", 1, "RecursionError: maximum recursion depth exceeded"),
        ("[0] * 10**10", 1, "MemoryError"),
        ("import sys; sys.exit('fatal: no')", 1, "fatal: no"),
        ("import sys; sys.exit(3)", 3, ""),
        ("exit(4)", 4, ""),
        ("import os; os._exit(7)", 7, ""),
        (
            "class E(Exception):\n  def __str__(s): raise RuntimeError\nraise E",
            1,
            "E: <exception str() failed>",
        ),
        ("class B:\n  def __repr__(s): raise ValueError('repr')\nB()", 1, "ValueError: repr"),
        ("open('big', 'wb').truncate(1 << 40)", 1, "OSError: [Errno 27] File too large"),
    ],
)
def test_errors_are_the_programs(code: str, exit_code: int, last: str) -> None:
    result = run(code)
    assert (result.status, result.exit_code, result.signal) == ("error", exit_code, None)
    lines = result.stderr.splitlines() or [""]
    if "null bytes" in last:  # a ValueError in Python 3.11
        assert lines[-1].partition(": ")[2] == last.partition(": ")[2]
    else:
        assert lines[-1].removeprefix("__main__.") == last


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit(0)", "exit()", "raise SystemExit", "import os; os._exit(0)"]
)
def test_leaving_with_code_0_is_no_error(code: str) -> None:
    assert run(code).status == "ok"


def test_lone_surrogates_in_the_code_are_the_programs_error() -> None:
    result = run("print('\ud800')")
    assert result.status == "error"
    assert "UnicodeEncodeError" in result.stderr


def test_a_traceback_shows_the_snippets_frames_only() -> None:
    result = run("import json\ndef parse(s):\n    return json.loads(s)\nparse('{')")
    assert 'File "snippet.py", line 4' in result.stderr
    assert "return json.loads(s)" in result.stderr
    assert "/" not in result.stderr
    assert "runner" not in result.stderr


def test_a_chain_of_errors_keeps_its_snippet_frames() -> None:
    result = run("try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e")
    assert result.stderr.index("KeyError: 'a'") < result.stderr.index("ValueError: b")
    assert "/" not in result.stderr


def test_an_error_is_reported_though_builtins_and_stdout_are_gone() -> None:
    code = "import builtins, sys\nbuiltins.print = builtins.repr = None\nsys.stdout = None\n1/0"
    result = run(code)
    assert result.status == "error"
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_warning_is_no_error() -> None:
    result = run("import warnings; warnings.warn('careful'); print(1)")
    assert (result.status, result.stdout) == ("ok", "1\n")
    assert "snippet.py:1: UserWarning: careful" in result.stderr


def test_equal_code_gives_equal_output() -> None:
    code = "import random\nprint(random.random(), hash('abc'), {'x', 'y', 'z'})"
    first, second = run(code), run(code)
    assert first.stdout == second.stdout
    assert first.stdout.startswith("0.8444218515250481 ")  # random.seed(0)


def test_numpys_global_generator_is_seeded_and_blas_works() -> None:
    pytest.importorskip("numpy")
    code = "import numpy as np\nprint(float(np.random.rand()))\nfloat(np.linalg.det(np.eye(50)))"
    assert run(code).stdout == "0.5488135039273248\n1.0\n"


def test_plots_do_not_block() -> None:
    pytest.importorskip("matplotlib")
    assert run("import matplotlib; print(matplotlib.get_backend().lower())").stdout == "agg\n"


# --- what the code can see ------------------------------------------------------------------


def test_the_environment_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret-1")
    monkeypatch.setenv("PYTHONSTARTUP", "secret-2")
    result = run("import os; print(dict(os.environ), open('/proc/self/environ').read())")
    assert result.status == "ok"
    assert "secret" not in result.stdout


def test_descriptors_are_not_inherited(tmp_path: Path) -> None:
    with open(tmp_path / "answers", "w") as answers:
        os.set_inheritable(answers.fileno(), True)
        code = "import os\nfor i in range(256):\n  try: os.fstat(i); print(i)\n  except OSError: pass"
        assert run(code).stdout.split() == ["0", "1", "2"]


def test_standard_input_does_not_hold_the_code() -> None:
    assert run("import os; os.lseek(0, 0, 0); os.read(0, 99)").stdout == "b''\n"


def test_the_directory_is_empty_private_and_removed(scratch_root: Path) -> None:
    code = "import os; print(os.listdir('.'), oct(os.stat('.').st_mode)); os.makedirs('a/b'); os.getcwd()"
    empty, path = run(code).stdout.splitlines()
    assert empty == f"[] {oct(stat.S_IFDIR | 0o700)}"
    assert Path(path.strip("'")).parent == scratch_root
    assert list(scratch_root.iterdir()) == []


def test_a_hostile_tree_is_removed(scratch_root: Path) -> None:
    scratch, outside = scratch_root / "torl-x", scratch_root / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    scratch.mkdir()
    (scratch / "link").symlink_to(outside)
    here = os.open(scratch, os.O_RDONLY)
    for _ in range(1100):  # too deep for recursion, and far beyond PATH_MAX
        os.mkdir("d" * 20, dir_fd=here)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.fchmod(here, 0)
    os.close(here)
    remove_scratch(str(scratch))
    assert not scratch.exists()
    assert (outside / "kept").exists()


def test_the_working_directory_and_torl_are_not_importable() -> None:
    assert run("import torl").stderr.endswith("No module named 'torl'\n")
    assert run("import runner").stderr.endswith("No module named 'runner'\n")


def test_calls_share_no_state() -> None:
    run("import builtins; builtins.sum = lambda x: 42; leaked = 1")
    result = run("print(sum([1, 2]), 'leaked' in globals())")
    assert result.stdout == "3 False\n"


# --- output ---------------------------------------------------------------------------------


def test_long_output_keeps_head_and_tail_and_is_counted() -> None:
    result = run("print('a' * 500_000); print('END')")
    assert result.status == "ok"
    assert result.stdout_bytes == 500_005
    assert result.stdout.startswith("aaa")
    assert result.stdout.endswith("aaa\nEND\n")
    assert result.stdout_cut == 500_005 - (64 << 10)
    assert f"[... {result.stdout_cut} bytes cut ...]" in result.stdout


def test_endless_output_is_stopped() -> None:
    result = run("while True: print('a' * 100_000)")
    assert result.status == "output_limit"
    assert 8 << 20 < result.stdout_bytes < 9 << 20
    assert len(result.stdout) < 70_000


def test_one_huge_print_is_stopped() -> None:
    assert run("print('a' * 50_000_000)").status == "output_limit"


def test_a_flood_on_stderr_leaves_stdout_readable() -> None:
    result = run("import sys; n = sys.stderr.write('e' * 5_000_000); print('fine')")
    assert (result.status, result.stdout) == ("ok", "fine\n")
    assert result.stderr_bytes == 5_000_000
    assert len(result.stderr) < 70_000


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("text", ["", "abc", "0123456789" * 30, "é✓😀" * 40, "a" + "😀" * 50])
@pytest.mark.parametrize("cap", [4, 16, 61, 100, 2000])
def test_capture_counts_exactly_and_splits_no_character(cap: int, text: str, chunk: int) -> None:
    data, capture = text.encode(), Capture(cap)
    for i in range(0, len(data), chunk):
        capture.feed(data[i : i + chunk])
    shown, cut = capture.text()
    assert capture.seen == len(data)
    assert "�" not in shown
    if len(data) <= cap:
        assert (shown, cut) == (text, 0)
    else:
        head, tail = shown.split(f"\n[... {cut} bytes cut ...]\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head.encode()) + len(tail.encode()) + cut == len(data)
        assert cap - 6 <= len(head.encode()) + len(tail.encode()) <= cap


def test_capture_holds_little_of_a_flood() -> None:
    capture = Capture(1000)
    for _ in range(200):
        capture.feed(b"\x80" * 10_000)
    assert capture.seen == 2_000_000
    assert len(capture.text()[0]) < 1100


def test_the_package_needs_no_torch() -> None:
    code = "import sys, torl.sandbox; print({'torch', 'pydantic', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
