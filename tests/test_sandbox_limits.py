"""The limits of the sandbox, its verdicts, its processes, and its own faults."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from sandbox_kit import alive, run, shared, use, wait_until

from torl.errors import SandboxFault
from torl.sandbox import Limits, Result, Sandbox


@pytest.fixture(autouse=True)
def scratch_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scratch directories are made here, so that a test sees what is left of them."""
    root = tmp_path / "scratch"
    root.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    return root


# --- limits ---------------------------------------------------------------------------------


def test_a_busy_loop_ends_at_its_processor_limit() -> None:
    result = run("print('a')\nwhile True: pass", cpu_s=0.3)
    assert (result.status, result.exit_code, result.signal) == ("timeout_cpu", None, signal.SIGKILL)
    assert result.stdout == "a\n"
    assert 0.3 <= result.cpu_s < 1.0


def test_c_code_that_never_returns_ends_too() -> None:
    result = run("import re; re.match(r'(a+)+$', 'a' * 50 + 'b')", cpu_s=0.3)
    assert result.status == "timeout_cpu"


def test_a_sleep_ends_at_the_wall_limit() -> None:
    result = run("print('a', end='', flush=True)\nimport time; time.sleep(60)", timeout_s=0.3)
    assert (result.status, result.stdout) == ("timeout_wall", "a")
    assert 0.3 <= result.run_s < 2.0


@pytest.mark.parametrize(
    "code",
    [
        "import signal, time\nfor s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "  try: signal.signal(s, signal.SIG_IGN)\n  except OSError: pass\ntime.sleep(60)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import atexit, time; r = atexit.register(time.sleep, 60)",
        "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
        "class A:\n  def __del__(s):\n    while True: pass\na = A(); del a",
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
    ],
)
def test_nothing_escapes_the_wall_limit(code: str) -> None:
    assert run(code, timeout_s=0.3).status == "timeout_wall"


def test_output_printed_before_a_hanging_exit_is_kept() -> None:
    code = "import atexit, time, sys\nr = atexit.register(time.sleep, 60)\nsys.stdout.write('x')\nNone"
    assert run(code, timeout_s=0.5).stdout == "x"


def test_memory_is_limited_and_the_error_is_plain() -> None:
    result = run("a = []\nwhile True: a.append(bytearray(10**7))", memory_mb=200, cpu_s=20, timeout_s=20)
    assert (result.status, result.exit_code) == ("error", 1)
    assert result.stderr.endswith("MemoryError\n")


def test_peak_memory_is_the_childs_own() -> None:
    ballast = bytearray(b"x") * (200 << 20)
    code = "a = bytearray(b'x') * (80 << 20)\nimport time; time.sleep(0.15)"
    small, big = run("import time; time.sleep(0.1)"), run(code)
    assert len(ballast) > 0
    assert small.max_rss_mb < 60
    assert 80 < big.max_rss_mb < 140


def test_a_kill_by_the_system_while_memory_is_full_is_oom() -> None:
    code = "import os, time\na = bytearray(b'x') * (80 << 20)\ntime.sleep(0.2)\nos.kill(os.getpid(), 9)"
    assert run(code, memory_mb=150).status == "oom"


def test_descriptors_are_limited() -> None:
    assert "Too many open files" in run("import os\nwhile True: os.pipe()").stderr


def test_limits_are_hard_and_there_are_no_core_files() -> None:
    code = (
        "import resource as r\nprint(r.getrlimit(r.RLIMIT_CORE), r.getrlimit(r.RLIMIT_NOFILE))\n"
        "r.getrlimit(r.RLIMIT_AS)[1] <= 1024 << 20, 0 < r.getrlimit(r.RLIMIT_CPU)[1] < 30"
    )
    assert run(code).stdout == "(0, 0) (128, 128)\n(True, True)\n"


# --- verdicts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("import os; os.abort()", signal.SIGABRT),
        ("import ctypes; ctypes.string_at(0)", signal.SIGSEGV),
        ("import os; os.kill(os.getpid(), 9)", signal.SIGKILL),
        ("import os; os.killpg(0, 9)", signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)", signal.SIGXCPU),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", signal.SIGTERM),
    ],
)
def test_a_signal_is_a_crash_and_output_before_it_is_kept(code: str, number: int) -> None:
    result = run(f"print('before')\n{code}\nprint('after')")
    assert (result.status, result.exit_code, result.signal) == ("crashed", None, number)
    assert result.stdout == "before\n"


@pytest.mark.parametrize("exit_code", [1, 124, 125, 126, 127, 137, 139, 255])
def test_no_exit_code_has_a_meaning_of_its_own(exit_code: int) -> None:
    result = run(f"import os; os._exit({exit_code})")
    assert (result.status, result.exit_code) == ("error", exit_code)


def test_forged_words_and_descriptors_mean_nothing() -> None:
    code = (
        "import os\nprint('R'); print('{\"status\": \"ok\"}'); print('timeout_wall')\n"
        "for fd in range(3, 64):\n  try: os.write(fd, b'R')\n  except OSError: pass\n1/0"
    )
    result = run(code)
    assert (result.status, result.exit_code) == ("error", 1)


# --- processes ------------------------------------------------------------------------------


def test_a_background_process_with_the_pipe_neither_hangs_nor_lives_on() -> None:
    code = "import subprocess\nprint(subprocess.Popen(['sleep', '60']).pid)"
    started = time.monotonic()
    result = run(code)
    assert (result.status, time.monotonic() - started < 10) == ("ok", True)
    assert wait_until(lambda: not alive(int(result.stdout)))


def test_a_process_that_left_the_group_cannot_hold_the_call() -> None:
    code = "import subprocess\nprint(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    started = time.monotonic()
    result = run(code)
    os.kill(int(result.stdout), signal.SIGKILL)  # it lives on: the gap that the docstring names
    assert (result.status, time.monotonic() - started < 10) == ("ok", True)


def test_a_fork_bomb_is_gone_after_the_limit(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        f"import os, time\nlog = os.open({str(pids)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "for i in range(8):\n"
        "  try: os.fork()\n"
        "  except OSError: pass\n"
        "  os.write(log, b'%d\\n' % os.getpid())\n"
        "time.sleep(60)"
    )
    assert run(code, timeout_s=1.0).status == "timeout_wall"
    seen = {int(pid) for pid in pids.read_text().split()}
    assert len(seen) > 8
    assert wait_until(lambda: not any(alive(pid) for pid in seen))


def test_the_snippet_has_no_hold_on_our_process_group() -> None:
    code = "import os\nprint(os.getpgrp() == os.getpid() == os.getsid(0))"
    assert run(code).stdout == "True\n"


def test_nothing_is_leaked_over_many_calls() -> None:
    run("1")
    before = sorted(os.listdir("/proc/self/fd"))
    for code in ("1", "1/0", "import os; os.abort()"):
        run(code)
    assert sorted(os.listdir("/proc/self/fd")) == before


# --- many calls, cancellation, faults -------------------------------------------------------


def test_calls_beyond_the_workers_wait_and_are_not_charged() -> None:
    async def work(box: Sandbox) -> list[Result]:
        await box.run("1")
        return await asyncio.gather(*(box.run("import time; time.sleep(0.3)") for _ in range(6)))

    results = use(work, workers=1, timeout_s=1.0)
    assert [r.status for r in results] == ["ok"] * 6
    waits = sorted(r.queue_s for r in results)
    assert waits[0] < 1.0 < waits[-1]
    assert all(0.3 <= r.run_s < 1.0 for r in results)


def test_calls_run_side_by_side_up_to_the_workers() -> None:
    async def work(box: Sandbox) -> float:
        started = time.monotonic()
        await asyncio.gather(*(box.run("import time; time.sleep(0.5)") for _ in range(8)))
        return time.monotonic() - started

    assert use(work, workers=8) < 8 * 0.5


def test_limits_hold_while_the_event_loop_is_busy() -> None:
    async def work(box: Sandbox) -> Result:
        call = asyncio.create_task(box.run("print('a' * 100_000)\nimport time; time.sleep(60)"))
        await asyncio.sleep(0.05)
        time.sleep(0.8)  # as a decode step would
        return await call

    result = use(work, timeout_s=0.3)
    assert result.status == "timeout_wall"
    assert result.run_s < 0.75


def test_cancellation_kills_the_group_and_removes_the_directory(scratch_root: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(pids) + '.new'!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(pids) + '.new'!r}, {str(pids)!r})\ntime.sleep(60)"
    )

    async def work(box: Sandbox) -> None:
        task = asyncio.create_task(box.run(code))
        while not pids.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert list(scratch_root.iterdir()) == []
        assert (await box.run("1 + 1")).stdout == "2\n"  # the worker is free again

    use(work, workers=1, timeout_s=30.0)
    own, child = map(int, pids.read_text().split())
    assert not alive(own)
    assert wait_until(lambda: not alive(child))


def test_a_call_cancelled_in_the_queue_never_runs(tmp_path: Path) -> None:
    touched = tmp_path / "touched"

    async def work(box: Sandbox) -> None:
        first = asyncio.create_task(box.run("import time; time.sleep(0.4)"))
        second = asyncio.create_task(box.run(f"open({str(touched)!r}, 'w')"))
        await asyncio.sleep(0.05)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (await first).status == "ok"

    use(work, workers=1)
    assert not touched.exists()


def test_closing_fails_what_still_runs(scratch_root: Path) -> None:
    async def main() -> None:
        async with Sandbox(Limits(workers=1, timeout_s=30.0)) as box:
            calls = [asyncio.create_task(box.run("import time; time.sleep(60)")) for _ in range(3)]
            await asyncio.sleep(0.3)
        for call in calls:
            with pytest.raises(SandboxFault):
                await call
        with pytest.raises(SandboxFault, match="closed"):
            await box.run("1")

    asyncio.run(main())
    assert list(scratch_root.iterdir()) == []


def test_a_missing_interpreter_is_the_worlds_fault() -> None:
    async def main() -> None:
        async with Sandbox(python="/nowhere/python") as box:
            await box.run("1")

    with pytest.raises(SandboxFault, match="/nowhere/python"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo boom >&2; exit 0", "boom"),
        ("printf R; exit 0", "before it ran"),
        ("kill -9 $$", "before it ran"),
    ],
)
def test_death_before_the_limits_are_on_is_the_worlds_fault(tmp_path: Path, body: str, said: str) -> None:
    fake = tmp_path / "python"  # answers the question for its path, then breaks
    fake.write_text(f'#!/bin/sh\ncase "$*" in *-c*) echo /nowhere; exit 0;; esac\n{body}\n')
    fake.chmod(0o755)

    async def main() -> None:
        async with Sandbox(python=str(fake)) as box:
            await box.run("1")

    with pytest.raises(SandboxFault, match=said):
        asyncio.run(main())


def test_no_room_for_a_scratch_directory_is_the_worlds_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(SandboxFault, match="/nowhere"):
        use(lambda box: box.run("1"))


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        Limits(timeout_s=0)
    with pytest.raises(ValueError, match="memory_mb"):
        Limits(memory_mb=8)
    assert Limits(workers=3).slots == 3
    assert Limits().slots >= 1


def test_one_sandbox_serves_several_event_loops() -> None:
    for _ in range(2):
        assert asyncio.run(shared().run("1")).status == "ok"


def test_a_killed_parent_leaves_no_process_for_long(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    snippet = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent = (
        "import asyncio\nfrom torl.sandbox import Limits, Sandbox\n"
        f"asyncio.run(Sandbox(Limits(timeout_s=0.5)).run({snippet!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], env={**os.environ, "TMPDIR": str(tmp_path)})
    assert wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
    process.kill()
    process.wait()
    assert wait_until(lambda: not alive(int(pid_file.read_text())))


def test_no_thread_is_left_after_close() -> None:
    before = threading.active_count()
    use(lambda box: box.run("1"))
    assert wait_until(lambda: threading.active_count() <= before)
