"""A process for each call, and nothing else: for systems without Linux' layers, if the user insists.

Slow (a fresh interpreter a call) and open (the code may do whatever the user may). It knows the
wall-clock limit, the output limits and the exit code; memory and CPU time are not limited.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from torl.errors import UserError
from torl.sandbox.capture import Capture
from torl.sandbox.health import Health
from torl.sandbox.interpreter import environment
from torl.sandbox.types import Limits, Report, Result

# Runs the cells that standard input holds; prints of all but the last are dropped. Their own input, which
# comes with them, and the last value go by files: the one must be theirs to read, the other must stay
# apart from what is printed.
RUNNER = """
import ast, contextlib, io, json, os, sys, tempfile
(cells, given), sys.argv = json.load(sys.stdin), ["snippet.py"]
file = tempfile.TemporaryFile()
file.write(given.encode("utf-8", "replace"))
file.seek(0)
os.dup2(file.fileno(), 0)
file.close()
del file, given
sys.stdin = open(0, encoding="utf-8", closefd=False)
scope = {"__name__": "__main__"}
def run(cell):
    tree = ast.parse(cell, "snippet.py")
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, "snippet.py", "exec"), scope)
    return eval(compile(last, "snippet.py", "eval"), scope) if last else None
for cell in cells[:-1]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(BaseException):
            run(cell)
value = run(cells[-1])
if value is not None:
    with open("torl-value", "w", encoding="utf-8", errors="replace") as file:
        file.write(repr(value))
"""


class PlainSandbox:
    """The interface of Sandbox, without its protection: tier "unsafe" where there is no Linux."""

    def __init__(self, limits: Limits | None = None, *, python: str = sys.executable) -> None:
        self.limits = limits or Limits()
        self.health = Health()
        self._python = python
        self._slots = asyncio.Semaphore(self.limits.slots)

    async def __aenter__(self) -> "PlainSandbox":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> Report:
        return Report(
            "unsafe",
            "a process a call, no limits but time and output",
            {},
            [],
            self._python,
            self.limits.slots,
        )

    async def run(
        self, code: str, *, earlier: Sequence[str] = (), session: str = "", stdin: str = ""
    ) -> Result:
        """Runs one snippet. Raises UserError for a session: this sandbox has none."""
        if session:
            raise UserError("sandbox.state=session needs Linux; here it can be none or replay")
        queued = time.monotonic()
        async with self._slots:
            with tempfile.TemporaryDirectory(prefix="torl-", ignore_cleanup_errors=True) as folder:
                result = await self._run(([*earlier, code], stdin), folder, time.monotonic() - queued)
        self.health.count(result)
        return result

    async def end(self, session: str) -> None:
        """There are no sessions."""

    async def close(self) -> None:
        """Nothing is kept."""

    async def _run(self, given: tuple[list[str], str], folder: str, queue_s: float) -> Result:
        started = time.monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                self._python,
                "-I",
                "-c",
                RUNNER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=environment(folder) | {k: v for k, v in os.environ.items() if k == "SYSTEMROOT"},
                start_new_session=os.name == "posix",
            )
        except OSError as error:
            return Result("sandbox_error", reason=f"no process could be had: {error}")
        cap = self.limits.output_kb << 10
        out, err = Capture(cap), Capture(cap)
        late = False
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                await asyncio.gather(
                    _write(process, given), _read(process.stdout, out), _read(process.stderr, err)
                )
                await process.wait()
        except TimeoutError:
            late = True
        finally:
            _kill(process)
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]  # the pipes may be held
            await asyncio.sleep(0)
        return self._result(
            process.returncode or 0, folder, out, err, late=late, queue_s=queue_s, started=started
        )

    def _result(
        self,
        code: int,
        folder: str,
        out: Capture,
        err: Capture,
        *,
        late: bool,
        queue_s: float,
        started: float,
    ) -> Result:
        stdout, stdout_cut = out.text()
        stderr, stderr_cut = err.text()
        return Result(
            "timeout_wall" if late else "crashed" if code < 0 else "error" if code else "ok",
            exit_code=code if code >= 0 and not late else None,
            signal=-code if code < 0 else None,
            stdout=stdout,
            stderr=stderr,
            value=_value(folder, self.limits) if code == 0 else "",
            stdout_cut=stdout_cut,
            stderr_cut=stderr_cut,
            stdout_bytes=out.seen,
            stderr_bytes=err.seen,
            queue_s=queue_s,
            run_s=time.monotonic() - started,
            tier="unsafe",
        )


async def _write(process: asyncio.subprocess.Process, given: tuple[list[str], str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it has ended already
        process.stdin.write(json.dumps(given).encode("ascii"))
        await process.stdin.drain()
        process.stdin.close()


async def _read(stream: asyncio.StreamReader | None, capture: Capture) -> None:
    assert stream is not None
    while data := await stream.read(1 << 16):
        capture.feed(data)


def _value(folder: str, limits: Limits) -> str:
    capture = Capture(limits.output_kb << 10)
    with contextlib.suppress(OSError), open(os.path.join(folder, "torl-value"), "rb") as file:
        capture.feed(file.read())
    return capture.text()[0]


def _kill(process: asyncio.subprocess.Process) -> None:
    """The whole group, where there are groups: what it started may hold the pipes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
