"""The sandbox as a service over HTTP. ``torl.sandbox.fusion`` says what its calls mean.

    POST /run_code   runs a snippet, as SandboxFusion's server does
    GET  /health     what is served, and how busy it is; 503 while it shuts down
    GET  /v1/ping    "pong", as SandboxFusion's server says
    GET  /metrics    for Prometheus

A call waits in the box's queue, at most ``queue`` of them; one more gets 429 and a Retry-After. When
its client goes away, a call is ended, whether it waits or runs. A token, where one is set, is needed
for /run_code and /metrics (401 without it); the body of a request is bounded (413).
"""

import asyncio
import contextlib
import hmac
import logging
import math
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Protocol

from pydantic import ValidationError

from torl.errors import SandboxFault, UserError
from torl.sandbox import fusion
from torl.sandbox.types import Limits, Report, Result

try:
    import prometheus_client as prometheus
    from aiohttp import web
except ImportError as error:
    raise UserError("serving a sandbox needs two more packages: pip install 'torl[serve]'") from error

log = logging.getLogger("torl")

QUEUE = 256  # calls
BODY_MB = 8  # code, input and their escapes
BODY_S = 30.0  # for the body of a request to come: until then it takes a place
DRAIN_S = 30.0
LONGEST_RETRY_S = 30
RECENT = 256  # calls from which the throughput is told
RECENT_S = 60.0
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0)
OPEN_PATHS = ("/health", "/v1/ping")


class Box(Protocol):
    """What runs the code: a Sandbox."""

    limits: Limits
    report: Report | None

    async def run(self, code: str, *, stdin: str = "", limits: Limits | None = None) -> Result: ...


class Metrics:
    """What Prometheus reads, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        kind: Any = {"namespace": "torl", "subsystem": "sandbox", "registry": self.registry}
        self.calls = prometheus.Counter("calls", "Calls that got a result.", ["status"], **kind)
        self.refused = prometheus.Counter("refused", "Calls that were turned away.", ["reason"], **kind)
        self.abandoned = prometheus.Counter("abandoned", "Calls whose client went away.", **kind)
        self.run_s = prometheus.Histogram("run_seconds", "Wall clock of calls.", buckets=BUCKETS_S, **kind)
        self.queue_s = prometheus.Histogram("queue_seconds", "Waits.", buckets=BUCKETS_S, **kind)
        self.running = prometheus.Gauge("running", "Calls that run now.", **kind)
        self.queued = prometheus.Gauge("queued", "Calls that wait now.", **kind)

    def count(self, result: Result) -> None:
        self.calls.labels(result.status).inc()
        if result.status != "sandbox_error":
            self.run_s.observe(result.run_s)
            self.queue_s.observe(result.queue_s)


class Throughput:
    """How soon a place in the queue is to be had."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=RECENT)  # of calls, monotonic s

    def count(self, now: float) -> None:
        self._ends.append(now)

    def retry_after(self, waiting: int, now: float) -> int:
        """Whole seconds until half of ``waiting`` calls are through, from 1 on."""
        ends = [end for end in self._ends if now - end <= RECENT_S]
        if len(ends) < 2 or now <= ends[0]:
            return 1
        per_s = len(ends) / (now - ends[0])
        return max(1, min(LONGEST_RETRY_S, math.ceil(waiting / per_s / 2)))


class Service:
    """The handlers, and what they share."""

    def __init__(self, box: Box, *, token: str | None, queue: int) -> None:
        self.box, self.queue = box, queue
        self.metrics = Metrics()
        self.draining = False
        self._token = token
        self._present = 0  # calls that wait or run
        self._throughput = Throughput()
        self._begun = time.monotonic()

    @property
    def slots(self) -> int:
        return self.box.report.slots if self.box.report else self.box.limits.slots

    @property
    def running(self) -> int:
        return min(self._present, self.slots)

    @property
    def queued(self) -> int:
        return self._present - self.running

    # --- handlers -----------------------------------------------------------------------------

    async def run_code(self, request: web.Request) -> web.Response:
        if self.draining:
            return self._refuse("draining", 503, "the service is shutting down", retry_after=1)
        if self._present >= self.slots + self.queue:
            wait_s = self._throughput.retry_after(self.queued, time.monotonic())
            text = f"{self.queued} calls wait already; try again in {wait_s} s"
            return self._refuse("full", 429, text, retry_after=wait_s)
        self._present += 1  # before the body is read: bodies take memory, too
        try:
            return await self._run_code(request)
        except asyncio.CancelledError:
            self.metrics.abandoned.inc()
            raise
        finally:
            self._present -= 1

    async def _run_code(self, request: web.Request) -> web.Response:
        kind = request.content_type if "Content-Type" in request.headers else "application/json"
        if kind != "application/json" and not kind.endswith("+json"):
            return self._refuse("invalid", 422, f"the body must be application/json, not {kind}")
        try:
            async with asyncio.timeout(BODY_S):
                body = await request.read()
            asked = fusion.read_request(body)
        except TimeoutError:
            return self._refuse("invalid", 408, f"the body did not come within {BODY_S:g} s")
        except ValidationError as error:
            return self._refuse("invalid", 422, fusion.details(error))
        limits, notes = fusion.limits_of(asked, self.box.limits)
        result = await self._run(asked.code, asked.stdin or "", limits)
        self.metrics.count(result)
        self._throughput.count(time.monotonic())
        return web.json_response(fusion.answer_of(result, notes, os.environ.get("MY_POD_NAME")))

    async def _run(self, code: str, stdin: str, limits: Limits) -> Result:
        try:
            return await self.box.run(code, stdin=stdin, limits=limits)
        except (SandboxFault, UserError) as error:
            return Result("sandbox_error", reason=str(error))
        except Exception as error:  # ours: the client must not take it for the code's fault
            log.exception("sandbox service: a call failed")
            return Result("sandbox_error", reason=f"internal error: {type(error).__name__}: {error}")

    async def health(self, _: web.Request) -> web.Response:
        report = self.box.report
        found: dict[str, Any] = {
            "ok": not self.draining,
            "service": "torl",
            "tier": report.tier if report else None,
            "layers": report.layers if report else None,
            "python": report.python if report else None,
            "versions": report.versions if report else {},
            "slots": self.slots,
            "running": self.running,
            "queued": self.queued,
            "queue": self.queue,
            "uptime_s": round(time.monotonic() - self._begun, 3),
        }
        return web.json_response(found, status=503 if self.draining else 200)

    async def ping(self, _: web.Request) -> web.Response:
        return web.json_response("pong")

    async def show_metrics(self, _: web.Request) -> web.Response:
        self.metrics.running.set(self.running)
        self.metrics.queued.set(self.queued)
        text = prometheus.generate_latest(self.metrics.registry)
        return web.Response(body=text, headers={"Content-Type": prometheus.CONTENT_TYPE_LATEST})

    # --- refusals -----------------------------------------------------------------------------

    @web.middleware
    async def guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Asks for the token, and gives every refusal a body of JSON."""
        if request.path not in OPEN_PATHS and not self._authorized(request):
            return self._refuse("unauthorized", 401, "a valid bearer token is needed")
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPException as error:  # no such path or method, or too large a body
            self.metrics.refused.labels("http").inc()
            return web.json_response({"detail": error.text or error.reason}, status=error.status)
        return response

    def _authorized(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, f"Bearer {self._token}".encode())

    def _refuse(self, reason: str, status: int, detail: Any, retry_after: int = 0) -> web.Response:
        self.metrics.refused.labels(reason).inc()
        headers = {"Retry-After": str(retry_after)} if retry_after else {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return web.json_response({"detail": detail}, status=status, headers=headers)


SERVICE: web.AppKey[Service] = web.AppKey("service", Service)


def make_app(
    box: Box, *, token: str | None = None, queue: int = QUEUE, body_mb: float = BODY_MB
) -> web.Application:
    """The application. ``box`` is not started, nor closed."""
    service = Service(box, token=token, queue=queue)
    app = web.Application(middlewares=[service.guard], client_max_size=int(body_mb * (1 << 20)))
    app[SERVICE] = service
    app.router.add_post("/run_code", service.run_code)
    app.router.add_get("/health", service.health)
    app.router.add_get("/v1/ping", service.ping)
    app.router.add_get("/metrics", service.show_metrics)
    return app


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, *, drain_s: float = DRAIN_S
) -> AsyncIterator[int]:
    """Serves while the block runs; gives the port, which the system chooses for port 0.

    At the end no new call is taken, and those present have ``drain_s`` to end. Raises UserError
    when it cannot listen there.
    """
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=drain_s)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            why = error.strerror or str(error)
            raise UserError(f"the service cannot listen on {host}:{port}: {why}") from error
        yield runner.addresses[0][1]
    finally:
        app[SERVICE].draining = True
        await runner.cleanup()


async def serve(
    box: Box,
    host: str,
    port: int,
    *,
    token: str | None = None,
    queue: int = QUEUE,
    body_mb: float = BODY_MB,
    drain_s: float = DRAIN_S,
) -> None:
    """Serves until SIGINT, SIGTERM or cancellation, then drains. ``box`` is not closed.

    Raises UserError when it cannot listen there.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    app = make_app(box, token=token, queue=queue, body_mb=body_mb)
    async with listening(app, host, port, drain_s=drain_s):
        taken = [number for number in (signal.SIGINT, signal.SIGTERM) if _take(loop, number, stop)]
        try:
            await stop.wait()
        finally:
            for number in taken:  # a second one ends the process at once
                loop.remove_signal_handler(number)


def _take(loop: asyncio.AbstractEventLoop, number: int, stop: asyncio.Event) -> bool:
    try:
        loop.add_signal_handler(number, stop.set)
    except (RuntimeError, ValueError, NotImplementedError):  # not in the main thread
        return False
    return True
