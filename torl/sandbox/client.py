"""A sandbox elsewhere: calls go to servers that speak SandboxFusion's POST /run_code.

    async with RemoteSandbox(["http://one:8080", "http://two:8080"]) as box:
        result = await box.run("print(12 * 31)")

A call goes to the server with the fewest calls in flight for its slots. What the world does wrong is
tried again, elsewhere if there is an elsewhere; what the code does is a result, and never is. A full
or vanished server costs waiting, until the patience ends; a call that a server began and then lost
may have been the reason for it, so that is tried a few times only. Waiting is ``Result.queue_s``.
"""

import asyncio
import concurrent.futures
import contextlib
import io
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torl.errors import SandboxFault, UserError
from torl.sandbox import fusion
from torl.sandbox.box import PATIENCE_S
from torl.sandbox.health import Health
from torl.sandbox.types import Limits, Report, Result

try:
    import aiohttp
except ImportError as error:
    raise UserError("sandbox.urls needs two more packages: pip install 'torl[serve]'") from error

log = logging.getLogger("torl")
T = TypeVar("T")

START_S = 30.0  # for a server to come up, at the start
CONNECT_S = 10.0
KEEP_S = 4.0  # of an idle connection: less than servers do
ANSWER_S = 60.0  # beyond the code's own limit: the queue of a server
LOSSES = 4  # of one call, by servers that had taken it
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
ANSWER_MB = 64
BREAKER_FAILURES = 5
BREAKER_OPEN_S, BREAKER_LONGEST_S = 2.0, 60.0


class Breaker:
    """Keeps calls away from a server that failed ``failures`` times in a row.

    closed → open: no call is let through for ``open_s`` → half open: one call is, as a probe;
    when it succeeds the breaker closes, when it fails it opens for twice as long.
    """

    def __init__(
        self,
        failures: int = BREAKER_FAILURES,
        open_s: float = BREAKER_OPEN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._first_s, self._clock = failures, open_s, clock
        self._failures = 0  # in a row
        self._open_s = 0.0  # 0: closed
        self._until = 0.0
        self._probing = False

    @property
    def state(self) -> str:
        if not self._open_s:
            return "closed"
        return "half_open" if self._clock() >= self._until else "open"

    def wait_s(self) -> float:
        """0 when a call may go; else how long to wait before asking again."""
        if not self._open_s:
            return 0.0
        return FIRST_PAUSE_S if self._probing else max(0.0, self._until - self._clock())

    def begin(self) -> None:
        """A call goes."""
        self._probing = bool(self._open_s)

    def succeed(self) -> None:
        self._failures, self._open_s, self._probing = 0, 0.0, False

    def fail(self) -> bool:
        """Whether this has opened it."""
        self._failures += 1
        self._probing = False
        if self.state == "closed" and self._failures < self._most:
            return False
        if self.state != "open":  # calls that were under way when it opened change nothing
            self._open_s = min(BREAKER_LONGEST_S, 2 * self._open_s or self._first_s)
            self._until = self._clock() + self._open_s
            return True
        return False

    def abandon(self) -> None:
        """The call was cancelled: it tells nothing."""
        self._probing = False


@dataclass
class Server:
    url: str
    breaker: Breaker = field(default_factory=Breaker)
    slots: int = 1
    in_flight: int = 0
    calls: int = 0  # so far
    not_before: float = 0.0  # monotonic s: it asked for a pause

    def wait_s(self, now: float) -> float:
        return max(self.breaker.wait_s(), self.not_before - now)


class RemoteSandbox:
    """In place of a Sandbox: the same interface, but for state between calls.

    ``urls`` are of ``torl sandbox serve`` or of SandboxFusion's server, with or without
    /run_code. At most ``limits.slots`` calls are under way at once; where ``limits.workers`` is
    0, as many as the servers together have slots, once ``start`` has asked them. May be used from
    several event loops and threads: the connections live in a thread of their own.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str | None = None,
        limits: Limits | None = None,
        patience_s: float = PATIENCE_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.limits = limits or Limits()
        self.health = Health()
        self.report: Report | None = None
        self.servers = [Server(url) for url in dict.fromkeys(map(fusion.address, urls))]
        if not self.servers:
            raise UserError("sandbox.urls is empty: give the address of at least one server")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._patience_s, self._answer_s = patience_s, answer_s
        self._random = random.Random()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._session: aiohttp.ClientSession | None = None
        self._gate: asyncio.Semaphore | None = None
        self._slots = self.limits.slots
        self._closed = False

    async def __aenter__(self) -> "RemoteSandbox":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> Report:
        """Tries every server. Raises UserError when none of them can be used."""
        if self.report is None:
            self.report = await self._elsewhere(self._start())
        return self.report

    async def run(
        self,
        code: str,
        *,
        earlier: Sequence[str] = (),
        session: str = "",
        stdin: str = "",
        limits: Limits | None = None,
    ) -> Result:
        """Runs one snippet. When no server does it, the result is a "sandbox_error" that says why.

        ``earlier`` and ``session`` need a sandbox on this machine: UserError. When the task is
        cancelled the connection is closed, by which a server of ours knows to end the code.
        """
        if earlier or session:
            raise UserError("state between calls needs a sandbox on this machine, not sandbox.urls")
        try:
            result = await self._elsewhere(self._call(code, stdin, limits or self.limits))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            result = Result("sandbox_error", reason="the sandbox was closed")
        except SandboxFault as fault:
            result = Result("sandbox_error", reason=str(fault))
        self.health.count(result)
        return result

    async def end(self, session: str) -> None:
        """There are no sessions."""

    async def close(self) -> None:
        """Calls that are under way get a sandbox_error."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._shut(), loop))
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(self._thread.join)
            loop.close()

    # --- the thread of the connections --------------------------------------------------------

    async def _elsewhere(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._closed:
                work.close()
                raise SandboxFault("the sandbox is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                forever = self._loop.run_forever
                self._thread = threading.Thread(target=forever, name="remote-sandbox", daemon=True)
                self._thread.start()
            future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.wrap_future(future)

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S)
            jar = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=jar, headers=self._headers
            )
        return self._session

    async def _shut(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    # --- a call -------------------------------------------------------------------------------

    async def _call(self, code: str, stdin: str, limits: Limits) -> Result:
        begun = time.monotonic()
        self._gate = self._gate or asyncio.Semaphore(self._slots)
        body = json.dumps(fusion.request_of(code, stdin, limits)).encode()
        async with self._gate:
            end = time.monotonic() + self._patience_s  # waiting for our own calls is no fault
            result, faults = await self._persist(body, limits, end)
        waited_s = max(0.0, time.monotonic() - begun - result.run_s)
        return replace(result, queue_s=waited_s, retries=result.retries + faults)

    async def _persist(self, body: bytes, limits: Limits, end: float) -> tuple[Result, int]:
        """A result, and how many faults came before it."""
        causes: dict[str, str] = {}  # the last one of each server
        faults = losses = busy = 0
        while True:
            server = await self._choose(end, causes)
            if server is None:
                break
            try:
                return await self._attempt(server, body, limits, end), faults
            except fusion.Fault as fault:
                causes[server.url] = str(fault)
                losses += fault.lost
                faults += not fault.busy
                busy += fault.busy
                if fault.final or losses >= LOSSES:
                    break
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(faults + busy, 10))
            await asyncio.sleep(min(self._random.uniform(0, pause_s), max(0.0, end - time.monotonic())))
        return Result("sandbox_error", reason=self._reason(causes)), faults

    async def _choose(self, end: float, causes: dict[str, str]) -> Server | None:
        """Waits for a server that takes calls. None when the patience has ended before."""
        paused = False
        while (now := time.monotonic()) < end:
            waits = {server.url: server.wait_s(now) for server in self.servers}
            ready = [server for server in self.servers if waits[server.url] <= 0]
            if ready:  # one that has not just failed this call, if there is one
                fresh = [server for server in ready if server.url not in causes] or ready
                return min(fresh, key=lambda server: (server.in_flight / server.slots, server.calls))
            if not paused:
                paused, self.health.pauses = True, self.health.pauses + 1
            wait_s = min(waits.values()) + self._random.uniform(0, FIRST_PAUSE_S)
            await asyncio.sleep(min(wait_s, end - now))
        return None

    def _reason(self, causes: dict[str, str]) -> str:
        said = [
            f"{server.url}: {causes.get(server.url) or f'not asked, its breaker is {server.breaker.state}'}"
            for server in self.servers
        ]
        return f"no server ran the code: {'; '.join(said)}"

    async def _attempt(self, server: Server, body: bytes, limits: Limits, end: float) -> Result:
        """One request. Raises fusion.Fault, of which the breaker is told."""
        server.in_flight += 1
        server.calls += 1
        server.breaker.begin()
        total_s = min(limits.timeout_s + self._answer_s, max(0.1, end - time.monotonic()))
        try:
            result = await self._post(server.url, body, limits, total_s)
        except fusion.Fault as fault:
            server.not_before = max(server.not_before, time.monotonic() + fault.pause_s)
            if fault.busy or fault.final:  # it is well
                server.breaker.succeed()
            elif server.breaker.fail():
                log.warning("sandbox server %s is left alone for a while: %s", server.url, fault)
            raise
        except BaseException:
            server.breaker.abandon()
            raise
        else:
            server.breaker.succeed()
            return result
        finally:
            server.in_flight -= 1

    async def _post(self, url: str, body: bytes, limits: Limits, total_s: float) -> Result:
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_S)
        try:
            async with self._http().post(
                f"{url}/run_code",
                data=io.BytesIO(body),  # aiohttp warns of long bytes
                headers={"Content-Type": "application/json"},
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                answer = await _read(response)
                if response.status != 200:
                    raise fusion.refusal(response.status, answer, response.headers.get("Retry-After", ""))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise fusion.Fault(f"no connection: {error}", lost=False) from error
        except TimeoutError as error:
            raise fusion.Fault(f"no answer within {total_s:.1f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise fusion.Fault(f"the connection broke: {error or type(error).__name__}") from error
        try:
            result = fusion.result_of(answer, limits)
        except ValueError as error:
            raise fusion.Fault(f"its answer is not SandboxFusion's: {error}") from error
        if result.status == "sandbox_error":
            raise fusion.Fault(f"its sandbox failed: {result.reason}")
        return result

    # --- the start ----------------------------------------------------------------------------

    async def _start(self) -> Report:
        end = time.monotonic() + min(START_S, self._patience_s)
        found = await asyncio.gather(*(self._greet(server, end) for server in self.servers))
        told = {server.url: each for server, each in zip(self.servers, found, strict=True)}
        lost = [f"{url}: {why}" for url, why in told.items() if isinstance(why, str)]
        well = {url: about for url, about in told.items() if not isinstance(about, str)}
        if not well:
            text = "".join(f"\n  - {why}" for why in lost)
            raise UserError(
                f"sandbox.urls: no server can be used:{text}\nIs the token right, and the port?"
            )
        for why in lost:
            log.warning("a sandbox server cannot be used now: %s", why)
        if not self.limits.workers:
            slots = [int(about["slots"]) for about in well.values() if about.get("slots")]
            self._slots = sum(slots) or self._slots
        self._gate = asyncio.Semaphore(self._slots)
        return fusion.report_of(well, lost, self._slots)

    async def _greet(self, server: Server, end: float) -> dict[str, Any] | str:
        """What the server says of itself, once it has run a call; or why it cannot be used."""
        body = json.dumps(fusion.request_of("pass", "", self.limits)).encode()
        while True:
            try:
                await self._attempt(server, body, self.limits, end)
                break
            except fusion.Fault as fault:
                late = time.monotonic() + FIRST_PAUSE_S >= end
                if late and fault.busy:  # a full server is a server
                    break
                if late or fault.lost:
                    return str(fault)
            now = time.monotonic()
            await asyncio.sleep(min(1.0, end - now, max(FIRST_PAUSE_S, server.wait_s(now))))
        with contextlib.suppress(aiohttp.ClientError, OSError, ValueError, TypeError, fusion.Fault):
            timeout = aiohttp.ClientTimeout(total=CONNECT_S)
            async with self._http().get(f"{server.url}/health", timeout=timeout) as response:
                about = json.loads(await _read(response))
            if response.status == 200 and isinstance(about, dict) and about.get("service") == "torl":
                server.slots = max(1, int(about.get("slots") or 1))
                return about
        return {}


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > ANSWER_MB << 20:
            raise fusion.Fault(f"its answer is longer than {ANSWER_MB} MB")
    return bytes(body)
