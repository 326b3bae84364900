"""The client of sandboxes elsewhere: ours, and SandboxFusion's."""

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

import sandbox_kit
from aiohttp import web
from test_sandbox_service import FakeBox, until

from torl.errors import UserError
from torl.sandbox import Limits, Result, client, fusion, service
from torl.sandbox.client import Breaker, RemoteSandbox
from torl.tools.base import ToolContext
from torl.tools.python import PythonTool

LIMITS = Limits(timeout_s=5.0, cpu_s=5.0, workers=4)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(client, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(fusion, "LEAST_PAUSE_S", 0.01)


@asynccontextmanager
async def ours(box: Any, **options: Any) -> AsyncIterator[str]:
    app = service.make_app(box, **options)
    async with service.listening(app, "127.0.0.1", 0, drain_s=0.2) as port:
        yield f"http://127.0.0.1:{port}"


class Fusion:
    """A server such as SandboxFusion's: scripted answers, the last one again and again.

    An answer is a body for status 200, a (status, body, headers), or "drop": the connection breaks.
    """

    def __init__(self, *answers: Any, delay_s: float = 0.0) -> None:
        self.answers, self.delay_s = list(answers), delay_s
        self.requests: list[dict[str, Any]] = []
        self.at_once = self.most_at_once = 0

    async def run_code(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.delay_s)
        self.at_once -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "drop":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        status, body, headers = answer if isinstance(answer, tuple) else (200, answer, {})
        return web.Response(status=status, text=json.dumps(body), headers=headers)

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/run_code", self.run_code)
        runner = web.AppRunner(app, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def ran(return_code: int | None = 0, status: str = "Finished", **more: Any) -> dict[str, Any]:
    run = {
        "status": status,
        "execution_time": 0.02,
        "return_code": return_code,
        "stdout": "hi\n",
        "stderr": "",
    }
    overall = "Success" if return_code == 0 and status == "Finished" else "Failed"
    return {
        "status": overall,
        "message": "",
        "compile_result": None,
        "run_result": run | more,
        "executor_pod_name": None,
        "files": {},
    }


SANDBOX_ERROR = {"status": "SandboxError", "message": "no bash", "run_result": None, "files": {}}


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def call(*servers: Any, times: int = 1, patience_s: float = 10.0, **options: Any) -> list[Result]:
    """The results of calls one after the other; a server is a Fusion, a box or an address."""
    options.setdefault("limits", LIMITS)

    async def main() -> list[Result]:
        async with asyncio.timeout(20), contextlib.AsyncExitStack() as stack:
            urls = [
                server
                if isinstance(server, str)
                else await stack.enter_async_context(
                    server.serving() if isinstance(server, Fusion) else ours(server)
                )
                for server in servers
            ]
            async with RemoteSandbox(urls, patience_s=patience_s, **options) as box:
                return [await box.run("print('hi')") for _ in range(times)]

    return asyncio.run(main())


# --- against our own service ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        Result(
            "ok", exit_code=0, stdout="é\x00\n", value="3", stdout_bytes=4, run_s=0.5, cpu_s=0.1, tier="B"
        ),
        Result("error", exit_code=137, stderr="trace"),
        Result("crashed", signal=11, max_rss_mb=12.5),
        Result("oom", signal=9, retries=1),
        Result("output_limit", signal=9, stdout="a", stdout_cut=5, stdout_bytes=6),
        Result("timeout_cpu", signal=9),
        Result("timeout_wall", signal=9),
    ],
)
def test_our_service_gives_the_same_result(result: Result) -> None:
    found = call(FakeBox(result))[0]
    assert {**vars(found), "queue_s": 0.0} == vars(result)
    assert found.queue_s < 5


def test_limits_and_input_reach_the_sandbox() -> None:
    box = FakeBox()
    box.limits = Limits(timeout_s=60.0, cpu_s=60.0, memory_mb=4096)
    limits = Limits(timeout_s=3.0, cpu_s=1.5, memory_mb=100, output_kb=7, code_kb=9)

    async def main() -> None:
        async with ours(box) as url, RemoteSandbox([url + "/run_code/"], limits=LIMITS) as remote:
            await remote.run("a\ud800", stdin="input", limits=limits)
            await remote.run("b")

    asyncio.run(main())
    assert box.calls == [("a?", "input", limits), ("b", "", Limits(**{**vars(LIMITS), "workers": 0}))]


def test_a_real_sandbox_behind_the_python_tool() -> None:
    async def main() -> None:
        async with ours(sandbox_kit.shared(), token="secret") as url:
            remote = RemoteSandbox([url], token="secret", limits=Limits(timeout_s=5.0, cpu_s=0.5))
            tool = PythonTool(box=remote)
            told = await tool.start()
            assert told["sandbox"].startswith(f"tier {sandbox_kit.tier()}: {url}: ")
            assert remote.report is not None
            assert remote.report.slots == 2
            async with contextlib.AsyncExitStack() as stack:
                context = ToolContext("t", "task", 0, stack)
                answers = [await tool(code, context) for code in ("12 * 31", "1 / 0", "while True: pass")]
            assert [answer.text for answer in answers[:2]] == [
                "372\n",
                "ZeroDivisionError: division by zero",
            ]
            assert answers[2].status == "timeout"
            assert tool.metrics()["sandbox/calls"] == 3
            await tool.close()

    asyncio.run(main())


def test_a_wrong_token_is_told_at_the_start() -> None:
    async def main() -> None:
        async with ours(FakeBox(), token="secret") as url, RemoteSandbox([url], token="wrong") as box:
            with pytest.raises(UserError, match="HTTP 401"):
                await box.start()

    asyncio.run(main())


# --- against SandboxFusion's server -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "status", "exit_code", "signal"),
    [
        (ran(), "ok", 0, None),
        (ran(1), "error", 1, None),
        (ran(-11), "crashed", None, 11),
        (ran(137), "crashed", None, 9),
        (ran(139), "crashed", None, 11),
        (ran(None, "TimeLimitExceeded"), "timeout_wall", None, 9),
    ],
)
def test_statuses_are_derived(answer: Any, status: str, exit_code: int | None, signal: int | None) -> None:
    found = call(Fusion(answer))[0]
    assert (found.status, found.exit_code, found.signal) == (status, exit_code, signal)
    assert (found.stdout, found.stdout_bytes, found.run_s) == ("hi\n", 3, 0.02)
    assert (found.tier, found.retries) == (None, 0)


def test_what_it_is_asked() -> None:
    server = Fusion(ran())
    call(server)
    asked = server.requests[0]
    assert asked.pop("torl")["limits"]["cpu_s"] == 5.0
    assert asked == {
        "code": "print('hi')",
        "language": "python",
        "run_timeout": 5.0,
        "compile_timeout": 5.0,
        "memory_limit_MB": 512 + 1024,
        "stdin": None,
        "files": {},
        "fetch_files": [],
    }


def test_long_output_is_cut_here() -> None:
    found = call(Fusion(ran(stdout="x" * 5000)), limits=Limits(output_kb=1, workers=1))[0]
    assert (found.stdout_bytes, found.stdout_cut) == (5000, 5000 - 1024)
    assert "bytes cut" in found.stdout


def test_a_servers_report() -> None:
    async def main() -> None:
        boxes = Fusion(ran()).serving(), ours(FakeBox())
        async with boxes[0] as one, boxes[1] as two, RemoteSandbox([one, two], limits=Limits()) as box:
            report = await box.start()
            assert (report.tier, report.slots, report.refusals) == ("unsafe", 2, [])
            assert report.layers == f"{one}: SandboxFusion, isolation unknown; {two}: Landlock, seccomp"
            assert report.versions == {"numpy": "2.0"}
        async with ours(FakeBox()) as two, RemoteSandbox([two, closed_port()], patience_s=0.1) as box:
            report = await box.start()
            assert report.tier == "B"
            assert "no connection" in report.refusals[0]

    asyncio.run(main())


# --- the world's faults ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        "drop",
        SANDBOX_ERROR,
        (500, {}, {}),
        (502, {}, {}),
        (429, {}, {"Retry-After": "0"}),
        "nonsense",
        ran(None),
    ],
)
def test_faults_are_tried_again(fault: Any) -> None:
    server = Fusion(fault, ran(1))
    found = call(server)[0]
    assert (found.status, found.exit_code, len(server.requests)) == ("error", 1, 2)
    assert found.retries == (0 if isinstance(fault, tuple) and fault[0] == 429 else 1)


@pytest.mark.parametrize(
    "fault", ["drop", SANDBOX_ERROR, (500, {}, {}), (404, {}, {}), {"status": "Success"}]
)
def test_a_call_that_servers_lose_is_given_up(fault: Any) -> None:
    server = Fusion(fault)
    found = call(server)[0]
    assert (found.status, found.retries, len(server.requests)) == ("sandbox_error", 4, 4)
    assert "http://127.0.0.1:" in found.reason


def test_a_request_that_is_refused_is_not_made_again() -> None:
    server = Fusion((422, {"detail": "no such field"}, {}))
    found = call(server)[0]
    assert (found.status, len(server.requests)) == ("sandbox_error", 1)
    assert "no such field" in found.reason


def test_a_full_server_is_waited_for_and_that_is_queueing() -> None:
    server = Fusion(*[(429, {}, {"Retry-After": "0"})] * 20, ran())
    found = call(server)[0]
    assert (found.status, found.run_s, found.retries) == ("ok", 0.02, 0)
    assert found.queue_s > 0.1


def test_a_pause_that_is_asked_for_is_kept() -> None:
    found = call(Fusion((429, {}, {"Retry-After": "1"}), ran()))[0]
    assert found.queue_s > 0.9


def test_patience_ends() -> None:
    address = closed_port()
    begun = time.monotonic()
    found = call(address, patience_s=0.3)[0]
    assert found.status == "sandbox_error"
    assert 0.25 < time.monotonic() - begun < 5
    assert f"{address}: no connection" in found.reason


def test_a_server_that_does_not_answer() -> None:
    found = call(Fusion(ran(), delay_s=3.0), limits=Limits(timeout_s=0.05), answer_s=0.05)[0]
    assert found.status == "sandbox_error"
    assert "no answer within 0.1 s" in found.reason


def test_a_server_that_comes_back() -> None:
    async def main() -> Result:
        url = closed_port()
        async with asyncio.timeout(20), RemoteSandbox([url], limits=LIMITS) as box:
            box.servers[0].breaker = Breaker(open_s=0.05)
            task = asyncio.create_task(box.run("1"))
            await asyncio.sleep(0.3)
            async with Fusion(ran()).serving(int(url.rpartition(":")[2])):
                return await task

    found = asyncio.run(main())
    assert found.status == "ok"
    assert found.retries > 0


def test_one_of_several_is_dead(caplog: pytest.LogCaptureFixture) -> None:
    alive = Fusion(ran()), Fusion(ran())
    with caplog.at_level(logging.WARNING):
        results = call(alive[0], closed_port(), alive[1], times=30)
    assert {result.status for result in results} == {"ok"}
    assert sum(result.retries for result in results) <= 12
    assert [len(server.requests) for server in alive] == pytest.approx([15, 15], abs=6)
    assert "left alone for a while" in caplog.text


def test_a_refused_call_names_every_server() -> None:
    first, second = closed_port(), closed_port()
    reason = call(first, second, patience_s=0.2)[0].reason
    assert first in reason
    assert second in reason


# --- as a Sandbox ---------------------------------------------------------------------------------


def test_calls_at_once_are_bounded() -> None:
    server = Fusion(ran(), delay_s=0.02)

    async def main() -> list[Result]:
        async with server.serving() as url, RemoteSandbox([url], limits=Limits(workers=3)) as box:
            return await asyncio.gather(*(box.run("1") for _ in range(12)))

    results = asyncio.run(main())
    assert {result.status for result in results} == {"ok"}
    assert server.most_at_once == 3
    assert max(result.queue_s for result in results) > 0.04


def test_several_event_loops_one_after_the_other() -> None:
    box = RemoteSandbox(["http://127.0.0.1:1"], limits=LIMITS)

    async def once() -> Result:
        async with Fusion(ran()).serving() as url:
            box.servers[0].url = url
            return await box.run("1")

    assert [asyncio.run(once()).status for _ in range(3)] == ["ok"] * 3
    asyncio.run(box.close())


def test_a_cancelled_call_is_ended_there() -> None:
    there = FakeBox()

    async def main() -> None:
        there.gate = asyncio.Event()
        async with ours(there) as url, RemoteSandbox([url], limits=LIMITS) as box:
            task = asyncio.create_task(box.run("1"))
            await until(lambda: len(there.calls) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: there.cancelled == 1)
            there.gate.set()
            assert (await box.run("1")).status == "ok"

    asyncio.run(main())


def test_close_ends_calls() -> None:
    there = FakeBox()

    async def main() -> None:
        there.gate = asyncio.Event()
        async with ours(there) as url:
            box = RemoteSandbox([url], limits=LIMITS)
            task = asyncio.create_task(box.run("1"))
            await until(lambda: len(there.calls) == 1)
            await box.close()
            await box.close()
            found = await task
            assert (found.status, found.reason) == ("sandbox_error", "the sandbox was closed")
            assert (await box.run("1")).reason == "the sandbox is closed"

    asyncio.run(main())


def test_there_is_no_state_between_calls() -> None:
    box = RemoteSandbox(["http://127.0.0.1:1"])
    for more in ({"earlier": ["1"]}, {"session": "a"}):
        with pytest.raises(UserError, match="on this machine"):
            asyncio.run(box.run("1", **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("urls", [[], ["localhost:8080"], ["ftp://host"], ["http://"]])
def test_addresses(urls: list[str]) -> None:
    with pytest.raises(UserError, match=r"sandbox\.urls"):
        RemoteSandbox(urls)


# --- the breaker ----------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Callable[[], float]) -> Breaker:
    breaker = Breaker(failures=3, open_s=2.0, clock=clock)
    assert [breaker.fail(), breaker.fail(), breaker.state] == [False, False, "closed"]
    assert breaker.wait_s() == 0
    assert breaker.fail()
    return breaker


def test_breaker_opens_and_closes() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert (breaker.state, breaker.wait_s()) == ("open", 2.0)
    clock.now += 2.0
    assert (breaker.state, breaker.wait_s()) == ("half_open", 0.0)
    breaker.begin()
    assert breaker.wait_s() > 0  # one probe at a time
    breaker.succeed()
    assert (breaker.state, breaker.wait_s()) == ("closed", 0.0)
    assert not breaker.fail()  # the count began anew


def test_breaker_opens_longer_when_the_probe_fails() -> None:
    clock = Clock()
    breaker = opened(clock)
    for seconds in (4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        clock.now += breaker.wait_s()
        breaker.begin()
        assert breaker.fail()
        assert (breaker.state, breaker.wait_s()) == ("open", seconds)


def test_breaker_passes_over_late_failures_and_cancelled_probes() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert not breaker.fail()  # of a call that was under way
    assert breaker.wait_s() == 2.0
    clock.now += 2.0
    breaker.begin()
    breaker.abandon()
    assert breaker.wait_s() == 0  # the next one probes


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker(failures=3, clock=Clock())
    for _ in range(5):
        breaker.fail()
        breaker.fail()
        breaker.succeed()
    assert breaker.state == "closed"
