"""The tool named "python": runs the block in a sandbox, and answers with what it printed."""

import signal

from torl.sandbox import Limits, Result, Sandbox
from torl.tools.base import ToolContext
from torl.types import ToolResult

NOTHING = "(no output: print the values you need)"
_STATUS = {"timeout_cpu": "timeout", "timeout_wall": "timeout"}


class PythonTool:
    """Stateless: every call has a fresh interpreter. Raises SandboxFault, the world's fault."""

    name = "python"

    def __init__(self, limits: Limits | None = None) -> None:
        self._box = Sandbox(limits)

    async def __call__(self, text: str, context: ToolContext) -> ToolResult:  # noqa: ARG002
        result = await self._box.run(text)
        return ToolResult(
            observation(result, self._box.limits),
            status=_STATUS.get(result.status, result.status),
            run_s=result.run_s,
            queue_s=result.queue_s,
        )

    async def close(self) -> None:
        await self._box.close()


def observation(result: Result, limits: Limits) -> str:
    """What the policy reads: standard output, and after a failure one line that says why.

    Of an error it is the last line, as in the paper. What merely stands on standard error, such
    as a warning, is not shown.
    """
    printed = result.stdout if result.stdout.strip() else ""
    if result.status == "ok":
        return printed or NOTHING
    gap = "\n" if printed and not printed.endswith("\n") else ""
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
