"""The tool named "python": runs the block in a sandbox, and answers with what it printed."""

import logging
import signal
from collections.abc import Sequence
from typing import Literal, Protocol

from torl.errors import SandboxFault
from torl.sandbox import Limits, Report, Result, Sandbox
from torl.sandbox.health import Health
from torl.tools.base import ToolContext
from torl.types import ToolResult

log = logging.getLogger("torl")

FAULTS_TO_WARN_OF = 0.005  # of the calls
NOTHING = "(no output: print the values you need)"
_STATUS = {"timeout_cpu": "timeout", "timeout_wall": "timeout"}


class Box(Protocol):
    """What runs the code: a Sandbox here, or a RemoteSandbox elsewhere."""

    limits: Limits
    health: Health

    async def start(self) -> Report: ...

    async def run(
        self, code: str, *, earlier: Sequence[str] = (), session: str = "", stdin: str = ""
    ) -> Result: ...

    async def end(self, session: str) -> None: ...

    async def close(self) -> None: ...


class PythonTool:
    """Raises SandboxFault, the world's fault, when the sandbox failed twice.

    ``state`` is what a call sees of its trajectory's earlier calls: "none"; "replay": those that
    ran to their end are run again, silently, in the call's own fresh process; "session": one
    process serves the whole trajectory, and a new one follows when a call had to be killed.
    """

    name = "python"

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        box: Box | None = None,
        state: Literal["none", "replay", "session"] = "none",
        last_value: bool = True,
    ) -> None:
        self.box: Box = box or Sandbox(limits)
        self._state, self._last_value = state, last_value
        self._earlier: dict[int, list[str]] = {}  # cells to replay, by episode

    async def start(self) -> dict[str, str]:
        """Starts the sandbox, and says what it turned out to be, for the run's versions.

        Raises UserError when there is no isolation to be had here.
        """
        report = await self.box.start()
        if report.tier == "unsafe":
            log.warning("the sandbox is unsafe: the model's code may do whatever you may (docs/sandbox.md)")
        return {"sandbox": f"tier {report.tier}: {report.layers}", "sandbox python": report.python} | {
            f"sandbox {name}": version for name, version in report.versions.items()
        }

    def metrics(self) -> dict[str, float]:
        """How the sandbox has been doing since the last time; warns when it is to blame for much."""
        found = self.box.health.snapshot()
        calls = found["calls"]
        if calls and found["sandbox_error"] > FAULTS_TO_WARN_OF * calls:
            log.warning(
                "%g of %g calls were lost by the sandbox, not their code: such trajectories do not train",
                found["sandbox_error"],
                calls,
            )
        return {f"sandbox/{name}": value for name, value in found.items()}

    async def __call__(self, text: str, context: ToolContext) -> ToolResult:
        result = await self._run(text, context)
        if result.status == "sandbox_error":
            raise SandboxFault(f"the sandbox failed: {result.reason}")
        shown = observation(result, self.box.limits, last_value=self._last_value)
        if self._state == "session" and not result.lives:
            shown = f"{shown.rstrip()}; a new session follows, without the earlier variables"
        return ToolResult(
            shown,
            status=_STATUS.get(result.status, result.status),
            run_s=result.run_s,
            queue_s=result.queue_s,
        )

    async def _run(self, text: str, context: ToolContext) -> Result:
        if self._state == "none":
            return await self.box.run(text)
        episode = id(context.ending)  # a task may be played several times at once
        if self._state == "session":
            name = f"{context.trajectory_id}/{episode}"
            if context.call_number == 0:
                context.ending.push_async_callback(self.box.end, name)
            return await self.box.run(text, session=name)
        if episode not in self._earlier:
            self._earlier[episode] = []
            context.ending.callback(self._earlier.pop, episode, None)
        cells = self._earlier[episode]
        result = await self.box.run(text, earlier=cells)
        if result.status in ("ok", "error"):
            cells.append(text)
        return result

    async def close(self) -> None:
        await self.box.close()


def observation(result: Result, limits: Limits, *, last_value: bool = True) -> str:
    """What the policy reads: standard output and the last expression's value, and after a
    failure one line that says why.

    Of an error it is the last line, as in the paper. What merely stands on standard error, such
    as a warning, is not shown.
    """
    printed = result.stdout if result.stdout.strip() else ""
    gap = "\n" if printed and not printed.endswith("\n") else ""
    if result.status == "ok":
        value = f"{gap}{result.value}\n" if last_value and result.value else ""
        return printed + value or NOTHING
    return f"{printed}{gap}{_reason(result, limits)}"


def _reason(result: Result, limits: Limits) -> str:
    if result.status == "error":
        return _last_line(result.stderr) or f"exited with code {result.exit_code}"
    if result.status == "crashed":
        return f"crashed: {_signal_name(result.signal or 0)}"
    return {
        "timeout_wall": f"timed out: stopped after {limits.timeout_s:g} s",
        "timeout_cpu": f"timed out: used its {limits.cpu_s:g} s of processor time",
        "oom": f"out of memory: the limit is {limits.memory_mb} MB",
        "output_limit": f"stopped: printed more than {limits.kill_output_mb} MB",
    }[result.status]


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
