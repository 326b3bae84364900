"""The sandbox as a service: SandboxFusion's call, answered by ours."""

# ruff: noqa: E402

import asyncio
import importlib
import io
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

import sandbox_kit
from hypothesis import given, settings
from hypothesis import strategies as st

from torl.errors import SandboxFault, UserError
from torl.sandbox import Limits, Report, Result, fusion, service

REPORT = Report("B", "Landlock, seccomp", {"numpy": "2.0"}, [], "/usr/bin/python3", slots=2)


class FakeBox:
    """Answers as scripted, and remembers what it was asked."""

    def __init__(self, result: Result | Exception | None = None, delay_s: float = 0.0) -> None:
        self.limits = Limits(timeout_s=20.0, cpu_s=5.0, memory_mb=512, workers=2)
        self.report: Report | None = REPORT
        self.calls: list[tuple[str, str, Limits]] = []
        self.cancelled = 0
        self.gate: asyncio.Event | None = None  # calls wait for it
        self._result, self._delay_s = result or Result("ok", exit_code=0, stdout="hi\n"), delay_s

    async def run(self, code: str, *, stdin: str = "", limits: Limits | None = None) -> Result:
        self.calls.append((code, stdin, limits or self.limits))
        try:
            await asyncio.sleep(self._delay_s)
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class Caller:
    def __init__(self, session: Any, url: str, app: Any) -> None:
        self.session, self.url, self.app = session, url, app

    async def post(self, body: Any, **more: Any) -> tuple[int, Any, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        more.setdefault("headers", {"Content-Type": "application/json"})
        async with self.session.post(f"{self.url}/run_code", data=io.BytesIO(data), **more) as response:
            return response.status, json.loads(await response.read()), response.headers

    async def get(self, path: str, **more: Any) -> tuple[int, str]:
        async with self.session.get(self.url + path, **more) as response:
            return response.status, await response.text()


@asynccontextmanager
async def serving(box: Any, *, drain_s: float = 2.0, **options: Any) -> AsyncIterator[Caller]:
    app = service.make_app(box, **options)
    async with (
        service.listening(app, "127.0.0.1", 0, drain_s=drain_s) as port,
        aiohttp.ClientSession() as session,
    ):
        yield Caller(session, f"http://127.0.0.1:{port}", app)


def talk(box: Any, work: Callable[[Caller], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(30), serving(box, **options) as caller:
            return await work(caller)

    return asyncio.run(main())


def ask(box: Any, body: Any, **options: Any) -> tuple[int, Any, Any]:
    found: tuple[int, Any, Any] = talk(box, lambda caller: caller.post(body), **options)
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


# --- the answer, field by field -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "status", "run_status", "return_code"),
    [
        (Result("ok", exit_code=0), "Success", "Finished", 0),
        (Result("error", exit_code=3), "Failed", "Finished", 3),
        (Result("crashed", signal=11), "Failed", "Finished", -11),
        (Result("oom", signal=9), "Failed", "Finished", -9),
        (Result("output_limit", signal=9), "Failed", "Finished", -9),
        (Result("timeout_wall", signal=9), "Failed", "TimeLimitExceeded", None),
        (Result("timeout_cpu", signal=9), "Failed", "TimeLimitExceeded", None),
        (Result("sandbox_error", reason="it died"), "SandboxError", "Error", None),
    ],
)
def test_outcomes(result: Result, status: str, run_status: str, return_code: int | None) -> None:
    result = replace(result, stdout="out", run_s=0.25)
    code, answer, _ = ask(FakeBox(result), {"code": "1", "language": "python"})
    assert code == 200
    assert answer["status"] == status
    assert answer["message"] == ("it died" if status == "SandboxError" else "")
    assert (answer["compile_result"], answer["files"], answer["executor_pod_name"]) == (None, {}, None)
    run = answer["run_result"]
    assert (run["status"], run["return_code"]) == (run_status, return_code)
    assert (run["stdout"], run["execution_time"]) == ("out", 0.25)
    assert fusion.result_of(json.dumps(answer).encode(), Limits()) == replace(
        result, stderr=result.reason, queue_s=0.0
    )


@pytest.mark.parametrize("fault", [SandboxFault("gone"), UserError("gone"), ZeroDivisionError("gone")])
def test_what_the_sandbox_raises_is_never_the_codes_fault(fault: Exception) -> None:
    code, answer, _ = ask(FakeBox(fault), {"code": "1", "language": "python"})
    assert (code, answer["status"], answer["run_result"]["status"]) == (200, "SandboxError", "Error")
    assert "gone" in answer["message"]


def verl_verdict(answer: dict[str, Any], expected: str) -> tuple[Any, str]:
    """How verl's reward reads an answer: its verdict, and its word for it."""
    status, compiled, run = answer.get("status"), answer.get("compile_result"), answer.get("run_result")
    verdict: tuple[Any, str] = (-1, "sandbox_error" if status == "SandboxError" else "unknown")
    if status == "Failed" and compiled:
        verdict = (-4, "compile_error")
    elif status == "Failed" and run and run.get("status") == "TimeLimitExceeded":
        verdict = (-3, "timeout")
    elif status == "Failed" and run and (run.get("status") == "Error" or run.get("return_code") != 0):
        verdict = (-2, "runtime_error")
    elif status == "Success" and run and run.get("status") == "Finished":
        same = str(run.get("stdout") or "").rstrip("\n") == expected
        verdict = (same, "success" if same else "wrong_answer")
    return verdict


def verl_tool_text(answer: dict[str, Any]) -> str:
    """What verl's tool shows to the model."""
    run = answer.get("run_result") or {}
    return str(run["stdout"] + run["stderr"]) if run.get("status") == "Finished" else "no stdout here"


def torl_text(answer: dict[str, Any]) -> tuple[str, str]:
    """What ToRL's rollout reads: a code of 0, or any output, is the output."""
    run = answer["run_result"]
    if str(run["return_code"]) == "0" or len(str(run["stdout"])) != 0:
        return run["stdout"], "Done"
    return run["stdout"], run["stderr"].strip()


@pytest.mark.parametrize(
    ("code", "verdict", "shown", "read"),
    [
        ("print(int(input()) * 2)", (True, "success"), "42\n", ("42\n", "Done")),
        ("print(1)", (False, "wrong_answer"), "1\n", ("1\n", "Done")),
        ("import sys; sys.exit('no')", (-2, "runtime_error"), "no\n", ("", "no")),
        ("import time; time.sleep(60)", (-3, "timeout"), "no stdout here", ("", "")),
        ("import os; os.abort()", (-2, "runtime_error"), "", ("", "")),
    ],
)
def test_clients_of_sandboxfusion_read_a_real_sandbox(
    code: str, verdict: Any, shown: str, read: Any
) -> None:
    body = {  # as verl's client sends it
        "compile_timeout": 1,
        "run_timeout": 1,
        "code": code,
        "stdin": "21",
        "memory_limit_MB": 1024,
        "language": "python",
        "files": {},
        "fetch_files": [],
    }
    status, answer, _ = ask(sandbox_kit.shared(), body)
    assert status == 200
    assert verl_verdict(answer, "42") == verdict
    assert verl_tool_text(answer) == shown
    assert torl_text(answer) == read
    assert isinstance(answer["run_result"].get("execution_time", 0), float)  # verl-tool formats it
    assert answer["torl"]["tier"] == sandbox_kit.tier()


def test_a_clients_null_input_is_the_end_of_file() -> None:
    body = {"code": "import sys\nsys.stdin.read()", "language": "python", "stdin": None}
    assert ask(sandbox_kit.shared(), body)[1]["torl"]["value"] == "''"


# --- the request ----------------------------------------------------------------------------------


def test_limits_that_are_asked_for_are_kept_below_the_services() -> None:
    box = FakeBox()
    body = {"code": "1", "language": "python", "run_timeout": 30, "memory_limit_MB": 2048}
    answer = ask(box, body)[1]
    assert box.calls[0][2] == box.limits
    assert answer["torl"]["notes"] == [
        "run_timeout=30: this service grants 20 at most",
        "memory_limit_MB=2048: this service grants 512 at most",
    ]
    answer = ask(box, {"code": "1", "language": "python", "run_timeout": "2.5", "memory_limit_MB": 3})[1]
    assert box.calls[1][2] == replace(box.limits, timeout_s=2.5, memory_mb=16)
    assert answer["torl"]["notes"] == ["memory_limit_MB=3: 16 is the least"]


def test_what_is_not_asked_for_is_sandboxfusions_default_or_ours() -> None:
    box = FakeBox()
    answer = ask(box, {"code": "1", "language": "python", "memory_limit_MB": -1})[1]
    assert box.calls == [("1", "", replace(box.limits, timeout_s=10.0))]
    assert answer["torl"]["notes"] == []


def test_our_clients_limits_come_by_name() -> None:
    box = FakeBox()
    asked = {
        "cpu_s": 1.5,
        "output_kb": 1,
        "memory_mb": 64,
        "timeout_s": 12,
        "kill_output_mb": 1e9,
        "new": 1,
    }
    answer = ask(box, {"code": "1", "run_timeout": 5, "torl": {"limits": asked}})[1]
    assert box.calls[0][2] == replace(box.limits, cpu_s=1.5, output_kb=1, memory_mb=64, timeout_s=12.0)
    assert answer["torl"]["notes"] == [
        "torl.limits.kill_output_mb=1e+09: this service grants 8 at most",
        "torl.limits.new is not known here",
    ]


@pytest.mark.parametrize(
    ("body", "where", "what"),
    [
        (b"{", ["body"], "Invalid JSON"),
        (b"", ["body"], "Invalid JSON"),
        (b"\xff\xfe", ["body"], "Invalid JSON"),
        (b"[" * 100_000, ["body"], "Invalid JSON"),
        (b"[]", ["body"], "object"),
        ({}, ["body", "code"], "required"),
        ({"code": 1}, ["body", "code"], "string"),
        ({"code": "1", "language": "cpp"}, ["body", "language"], "'python' only, not 'cpp'"),
        ({"code": "1", "language": "pytest"}, ["body", "language"], "'python' only"),
        ({"code": "1", "run_timeout": "soon"}, ["body", "run_timeout"], "number"),
        ({"code": "1", "run_timeout": 0}, ["body", "run_timeout"], "greater than 0"),
        (b'{"code": "1", "run_timeout": NaN}', ["body", "run_timeout"], "finite"),
        ({"code": "1", "memory_limit_MB": 10**400}, ["body", "memory_limit_MB"], "less than"),
        ({"code": "1", "stdin": 5}, ["body", "stdin"], "string"),
        ({"code": "1", "files": {"a": "aGk="}}, ["body", "files"], "carries no files"),
        ({"code": "1", "fetch_files": ["a"]}, ["body", "fetch_files"], "carries no files"),
        ({"code": "1", "torl": {"limits": {"cpu_s": -1}}}, ["body", "torl", "limits", "cpu_s"], "greater"),
    ],
)
def test_requests_of_the_wrong_form(body: Any, where: list[str], what: str) -> None:
    box = FakeBox()
    status, answer, _ = ask(box, body)
    assert (status, answer["detail"][0]["loc"]) == (422, where)
    assert what in answer["detail"][0]["msg"]
    assert box.calls == []


def test_a_form_or_plain_text_is_refused() -> None:
    async def work(caller: Caller) -> None:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "nonsense"):
            assert (await caller.post({"code": "1"}, headers={"Content-Type": kind}))[0] == 422

    talk(FakeBox(), work)


def test_long_bodies_unknown_paths_and_methods() -> None:
    async def work(caller: Caller) -> None:
        assert (await caller.post({"code": "1" * (1 << 20)}))[0] == 413
        assert (await caller.get("/nowhere"))[0] == 404
        assert (await caller.get("/run_code"))[0] == 405

    talk(FakeBox(), work, body_mb=0.5)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["language", "run_timeout", "memory_limit_MB", "stdin", "files", "fetch_files", "torl"]
BODIES = st.binary(max_size=64) | st.one_of(
    JSON, st.fixed_dictionaries({"code": st.text(max_size=8)}, optional={name: JSON for name in FIELDS})
).map(lambda value: json.dumps(value).encode())


def test_no_body_gives_a_500() -> None:
    """Of hypothesis's examples, all go through one server."""
    bodies: list[bytes] = []

    @settings(max_examples=150, deadline=None, database=None)
    @given(BODIES)
    def collect(body: bytes) -> None:
        bodies.append(body)

    collect()

    async def work(caller: Caller) -> None:
        for body in bodies:
            status, answer, _ = await caller.post(body)
            assert status in (200, 422)
            assert ("detail" in answer) == (status == 422)
        _, text = await caller.get("/metrics")
        assert "sandbox_error" not in text

    talk(FakeBox(), work)


# --- who may, and how many ------------------------------------------------------------------------


def test_token() -> None:
    async def work(caller: Caller) -> None:
        body = {"code": "1"}
        assert (await caller.post(body))[0] == 401
        for header in ("Bearer wrong", "Bearer ", "Basic secret", "secret", "Bearer secr\u00e9t"):
            headers = {"Content-Type": "application/json", "Authorization": header}
            status, answer, answered = await caller.post(body, headers=headers)
            assert (status, answered["WWW-Authenticate"]) == (401, "Bearer")
            assert "token" in answer["detail"]
        headers = {"Content-Type": "application/json", "Authorization": "Bearer secret"}
        assert (await caller.post(body, headers=headers))[0] == 200
        assert (await caller.get("/metrics"))[0] == 401
        assert (await caller.get("/metrics", headers={"Authorization": "Bearer secret"}))[0] == 200
        assert (await caller.get("/health"))[0] == 200
        assert await caller.get("/v1/ping") == (200, '"pong"')

    talk(FakeBox(), work, token="secret")


def test_a_full_queue_says_when_to_come_again() -> None:
    box = FakeBox()

    async def work(caller: Caller) -> None:
        box.gate = asyncio.Event()
        body = {"code": "1", "language": "python"}
        calls = [asyncio.create_task(caller.post(body)) for _ in range(5)]  # 2 slots, 3 may wait
        await until(lambda: len(box.calls) == 5)
        status, answer, headers = await caller.post(body)
        assert (status, int(headers["Retry-After"])) == (429, 1)
        assert "3 calls wait" in answer["detail"]
        about = json.loads((await caller.get("/health"))[1])
        assert (about["running"], about["queued"], about["queue"], about["slots"]) == (2, 3, 3, 2)
        assert (about["ok"], about["tier"], about["layers"]) == (True, "B", "Landlock, seccomp")
        assert about["uptime_s"] > 0
        _, text = await caller.get("/metrics")
        assert "torl_sandbox_running 2.0" in text
        assert "torl_sandbox_queued 3.0" in text
        assert 'torl_sandbox_refused_total{reason="full"} 1.0' in text
        box.gate.set()
        assert [status for status, _, _ in await asyncio.gather(*calls)] == [200] * 5
        _, text = await caller.get("/metrics")
        assert 'torl_sandbox_calls_total{status="ok"} 5.0' in text
        assert "torl_sandbox_run_seconds_count 5.0" in text
        assert "torl_sandbox_running 0.0" in text

    talk(box, work, queue=3)


def test_retry_after_follows_the_throughput() -> None:
    recent = service.Throughput()
    assert recent.retry_after(100, 0.0) == 1
    for tenth in range(101):
        recent.count(tenth / 10)  # 10 calls a second
    assert recent.retry_after(100, 10.0) == 5
    assert recent.retry_after(100_000, 10.0) == service.LONGEST_RETRY_S
    assert recent.retry_after(0, 10.0) == 1
    assert recent.retry_after(100, 1000.0) == 1  # too long ago


# --- ends -----------------------------------------------------------------------------------------


def test_a_client_that_goes_away_ends_its_call() -> None:
    box = FakeBox()

    async def work(caller: Caller) -> None:
        box.gate = asyncio.Event()
        call = asyncio.create_task(caller.post({"code": "1"}))
        await until(lambda: len(box.calls) == 1)
        call.cancel()
        await until(lambda: box.cancelled == 1)
        about = json.loads((await caller.get("/health"))[1])
        assert (about["running"], about["queued"]) == (0, 0)
        assert "torl_sandbox_abandoned_total 1.0" in (await caller.get("/metrics"))[1]

    talk(box, work)


def test_a_shutdown_lets_calls_end_and_takes_no_more() -> None:
    async def main(delay_s: float, drain_s: float) -> tuple[Any, int]:
        box = FakeBox(delay_s=delay_s)
        async with aiohttp.ClientSession() as session:
            app = service.make_app(box)
            async with service.listening(app, "127.0.0.1", 0, drain_s=drain_s) as port:
                caller = Caller(session, f"http://127.0.0.1:{port}", app)
                call = asyncio.create_task(caller.post({"code": "1"}))
                await until(lambda: len(box.calls) == 1)
            with pytest.raises(aiohttp.ClientConnectorError):
                await caller.get("/health")
            found = (await asyncio.gather(call, return_exceptions=True))[0]
            return found, box.cancelled

    found, cancelled = asyncio.run(main(0.2, 5.0))
    assert (found[0], cancelled) == (200, 0)
    found, cancelled = asyncio.run(main(60.0, 0.1))
    assert isinstance(found, aiohttp.ClientError)
    assert cancelled == 1


def test_while_it_drains_it_says_so() -> None:
    async def work(caller: Caller) -> None:
        caller.app[service.SERVICE].draining = True
        assert (await caller.post({"code": "1"}))[0] == 503
        status, text = await caller.get("/health")
        assert (status, json.loads(text)["ok"]) == (503, False)

    talk(FakeBox(), work)


def test_serve_until_it_is_cancelled() -> None:
    async def main() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        task = asyncio.create_task(service.serve(FakeBox(), "127.0.0.1", port, drain_s=0.1))
        async with aiohttp.ClientSession() as session, asyncio.timeout(10):
            while True:
                try:
                    caller = Caller(session, f"http://127.0.0.1:{port}", None)
                    assert (await caller.post({"code": "1"}))[0] == 200
                    break
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.01)
            with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}"):
                await service.serve(FakeBox(), "127.0.0.1", port)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


# --- without the extra ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["service", "client"])
def test_the_missing_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, f"torl.sandbox.{name}", raising=False)
    with pytest.raises(UserError, match=r"pip install 'torl\[serve\]'"):
        importlib.import_module(f"torl.sandbox.{name}")


def test_the_sandbox_needs_no_http() -> None:
    code = "import sys, torl.sandbox; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
