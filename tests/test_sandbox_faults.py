"""What happens when parts of the sandbox die, or are sent nonsense."""

import asyncio
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox_kit import alive, children, shared, wait_until

from torl.sandbox import Limits, Result, Sandbox
from torl.sandbox.frames import BrokenFrame, Unpacker, pack

# --- frames ---------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x, max_size=3), max_leaves=5
)
MESSAGES = st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=4)


@given(MESSAGES, st.integers(1, 40))
def test_messages_survive_any_split(messages: list[dict[str, Any]], chunk: int) -> None:
    data, unpacker, found = b"".join(map(pack, messages)), Unpacker(), []
    for i in range(0, len(data), chunk):
        found += unpacker.feed(data[i : i + chunk])
    assert found == messages


def test_any_str_survives() -> None:
    text = "\ud800 \x00 é ✓ 😀 \udfff"
    assert Unpacker().feed(pack({"code": text})) == [{"code": text}]


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_nonsense_is_a_broken_frame_or_nothing_yet(chunks: list[bytes]) -> None:
    unpacker = Unpacker(limit=1000)
    try:
        for chunk in chunks:
            for message in unpacker.feed(chunk):
                assert isinstance(message, dict)
    except BrokenFrame:
        return


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", pack({"a": 1})[:4] + b"[1,2,3,4]"[:8], b"\0\0\0\1{"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenFrame):
        Unpacker().feed(data)


# --- the broker under nonsense ----------------------------------------------------------------


def _broker(box: Sandbox) -> subprocess.Popen[bytes]:
    connection = box._connection
    assert connection is not None
    return connection._process


@settings(max_examples=8, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200).map(lambda data: len(data).to_bytes(4, "big") + data),
        st.binary(max_size=20).map(lambda data: b"\xff" + data + bytes(4)),
        st.sampled_from(
            [
                pack({"op": "what"}),
                pack({"op": "run"}),
                pack({"op": "run", "id": 0, "cells": 3, "limits": {}, "stdin": "", "session": ""}),
                pack({"op": "stop", "id": "none"}),
                pack({}),
            ]
        ),
    )
)
def test_nonsense_ends_the_broker_or_is_ignored_and_calls_go_on(data: bytes) -> None:
    others = children(os.getpid())

    async def main() -> None:
        async with Sandbox(Limits(workers=1), preload=()) as box:
            await box.start()
            connection = box._connection
            assert connection is not None
            call = asyncio.create_task(box.run("import time; time.sleep(0.2); print('right')"))
            await asyncio.sleep(0.05)
            connection._socket.sendall(data)
            result = await call
            assert (result.status, result.stdout) in [("ok", "right\n"), ("sandbox_error", "")]
            assert (await box.run("1")).value == "1"
            await box.close()
            assert wait_until(lambda: children(os.getpid()) <= others, 1.0)

    asyncio.run(main())


# --- deaths ---------------------------------------------------------------------------------


def _kill_while_calls_run(victim: str, kills: int, calls: int) -> tuple[list[Result], dict[str, float]]:
    """Every call says its own number, and how often each was run to its end is counted."""
    chance = random.Random(victim)

    async def main() -> tuple[list[Result], dict[str, float]]:
        async with Sandbox(Limits(workers=4), preload=()) as box:
            await box.start()
            work = [
                asyncio.create_task(
                    box.run(f"import time; time.sleep({chance.random() * 0.05}); print({n})")
                )
                for n in range(calls)
            ]
            for _ in range(kills):
                if all(call.done() for call in work):
                    break
                await asyncio.sleep(0.1 + 0.4 * chance.random())
                broker = _broker(box).pid
                below = sorted(children(broker))
                target = broker if victim == "broker" or not below else chance.choice(below)
                try:
                    os.kill(target, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            results = await asyncio.gather(*work)
            return results, box.health.snapshot()

    return asyncio.run(main())


KILLS = [
    ("broker", 4, 100),
    ("a process below it", 4, 100),
    pytest.param("broker", 70, 2000, marks=pytest.mark.slow),
    pytest.param("a process below it", 70, 2000, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("victim", "kills", "calls"), KILLS)
def test_no_call_is_lost_or_mixed_up_when_parts_are_killed(victim: str, kills: int, calls: int) -> None:
    before = children(os.getpid())
    results, health = _kill_while_calls_run(victim, kills, calls)
    for n, result in enumerate(results):
        if result.status == "ok":
            assert result.stdout == f"{n}\n"
        else:  # the killed one was a child: it crashed as far as anybody can see
            assert (result.status, result.signal) in [("crashed", 9), ("sandbox_error", None)], result
    assert Counter(r.status for r in results)["ok"] >= calls / 2
    assert health["calls"] == calls
    assert wait_until(lambda: children(os.getpid()) <= before, 1.0)


@pytest.mark.parametrize("trainers", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_trainer_killed_at_a_random_moment_leaves_nothing(trainers: int) -> None:
    code = (
        "import asyncio\nfrom torl.sandbox import Limits, Sandbox\n"
        "async def main():\n"
        "  async with Sandbox(Limits(workers=4), preload=()) as box:\n"
        "    while True: await asyncio.gather(*(box.run('sum(range(10**5))') for _ in range(8)))\n"
        "asyncio.run(main())"
    )
    chance = random.Random(0)
    for _ in range(trainers):
        process = subprocess.Popen([sys.executable, "-c", code])
        time.sleep(0.1 + chance.random())
        below = children(process.pid)
        process.kill()
        process.wait()
        assert wait_until(lambda: not any(map(alive, below)), 1.0)  # noqa: B023 (called at once)


def test_calls_wait_while_no_worker_can_be_had(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = tmp_path / "broken"
    fake = tmp_path / "python"
    fake.write_text(
        f'#!/bin/sh\n[ -e {broken} ] && {{ echo no luck >&2; exit 1; }}\nexec {sys.executable} "$@"\n'
    )
    fake.chmod(0o755)

    async def main() -> tuple[Result, float]:
        async with Sandbox(Limits(workers=1), preload=(), python=str(fake)) as box:
            await box.start()
            broken.touch()
            for pid in children(_broker(box).pid):
                os.kill(pid, signal.SIGKILL)
            call = asyncio.create_task(box.run("print('at last')"))
            await asyncio.sleep(1.0)
            assert not call.done()
            broken.unlink()
            result = await call
            return result, box.health.snapshot()["pauses"]

    result, pauses = asyncio.run(main())
    assert (result.status, result.stdout) == ("ok", "at last\n")
    assert pauses >= 1
    assert result.run_s < 1.0 < result.queue_s
    assert "no worker can be had" in caplog.text
    assert "no luck" in caplog.text


def test_a_wait_without_end_becomes_the_worlds_fault(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\n[ -e {broken} ] && exit 1\nexec {sys.executable} "$@"\n')
    fake.chmod(0o755)

    async def main() -> Result:
        async with Sandbox(Limits(workers=1), preload=(), python=str(fake), patience_s=0.5) as box:
            await box.start()
            broken.touch()
            for pid in children(_broker(box).pid):
                os.kill(pid, signal.SIGKILL)
            return await box.run("print('never')")

    result = asyncio.run(main())
    assert result.status == "sandbox_error"
    assert "no worker could be had" in result.reason


def test_a_session_whose_process_is_lost_is_the_worlds_fault() -> None:
    async def main() -> list[Result]:
        async with Sandbox(Limits(workers=1), preload=()) as box:
            first = await box.run("x = 1", session="s")
            _broker(box).kill()
            await asyncio.sleep(0.5)
            return [first, await box.run("x", session="s"), await box.run("x = 5\nx", session="s")]

    results = asyncio.run(main())
    assert [r.status for r in results] == ["ok", "sandbox_error", "ok"]


def test_few_descriptors_make_calls_wait_not_fail() -> None:
    """Not even the trainer needs a descriptor for a call."""

    async def main() -> list[Result]:
        box = shared()
        await box.start()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, hard))
        try:
            return list(await asyncio.gather(*(box.run(f"print({n})") for n in range(40))))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert [r.stdout for r in asyncio.run(main())] == [f"{n}\n" for n in range(40)]


# --- soak -----------------------------------------------------------------------------------

MIX = [
    ("print(6 * 7)", "ok"),
    ("from sympy import *\nx = symbols('x')\nprint(solve(x**2 - 5*x + 6, x))", "ok"),
    ("import numpy as np; print(np.linalg.inv(np.eye(30)).sum())", "ok"),
    ("1/0", "error"),
    ("import sys; sys.exit(3)", "error"),
    ("a = bytearray(1 << 40)", "error"),
    ("import ctypes; ctypes.string_at(0)", "crashed"),
    ("import os; os.abort()", "crashed"),
    ("print('a' * 300_000)", "ok"),
    ("print('a' * 20_000_000)", "output_limit"),
    ("import os; os.close(1); os.close(2); os._exit(0)", "ok"),
    ("while True: pass", "timeout_cpu"),
    ("import time; time.sleep(60)", "timeout_wall"),
    (
        "import threading, time\nfor _ in '123': threading.Thread(target=time.sleep, args=(60,)).start()",
        "timeout_wall",
    ),
]


@pytest.mark.parametrize("calls", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_soak(calls: int) -> None:
    """Mixed calls: every verdict is right and nothing grows."""
    chance = random.Random(0)
    weights = [
        1.0 if want not in ("timeout_cpu", "timeout_wall", "output_limit") else 0.1 for _, want in MIX
    ]
    limits = Limits(cpu_s=1.0, timeout_s=3.0)
    tight = Limits(cpu_s=0.2, timeout_s=1.5)

    async def main() -> None:
        async with Sandbox(Limits(workers=2)) as box:
            await box.start()

            async def batch(count: int) -> None:
                chosen = chance.choices(MIX, weights, k=count)
                waits = ("timeout_cpu", "timeout_wall")
                results = await asyncio.gather(
                    *(box.run(code, limits=tight if want in waits else limits) for code, want in chosen)
                )
                wrong = [(c, w, r) for (c, w), r in zip(chosen, results, strict=True) if r.status != w]
                assert not wrong, wrong[:3]

            await batch(60)
            before = _footprint(_broker(box).pid)
            for left in range(calls - 60, 0, -500):
                await batch(min(500, left))
            broker = _broker(box).pid  # a call's own are closed right after its result is sent
            assert wait_until(lambda: _footprint(broker)["descriptors"] == before["descriptors"], 1.0)
            after = _footprint(broker)
            assert after["processes"] == before["processes"]
            assert after["memory"] < 1.05 * before["memory"]

    asyncio.run(main())


def _footprint(broker: int) -> dict[str, int]:
    pids = [os.getpid(), broker, *children(broker)]
    memory = sum(
        int(line.split()[1])
        for pid in pids[1:]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    )
    descriptors = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
    return {"processes": len(pids), "descriptors": descriptors, "memory": memory}
