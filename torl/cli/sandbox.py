"""``torl sandbox``: run code, serve it over HTTP, measure how fast it goes."""

import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, get_args

import typer

from torl.cli.shared import console, group, say
from torl.errors import UserError
from torl.sandbox import Limits, Report, Sandbox, Tier

sandbox = group("sandbox", "Run untrusted Python: once, as a service, or to see how fast it goes.")

TierOption = Annotated[
    str, typer.Option("--tier", help='"auto", or one of A, B, C, D, unsafe (docs/sandbox.md).')
]
PythonOption = Annotated[
    str, typer.Option("--python", help="The interpreter of the tool's packages [this one].")
]
CpuOption = Annotated[float, typer.Option("--cpu-s", help="Processor seconds of a call.")]
WallOption = Annotated[float, typer.Option("--timeout-s", help="Wall-clock seconds of a call.")]
MemoryOption = Annotated[int, typer.Option("--memory-mb", help="Memory of a call.")]
WorkersOption = Annotated[int, typer.Option("--workers", help="Calls at once; 0: one per core.")]
TIERS = ("auto", *get_args(Tier))


@sandbox.command()
def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A Python file; - reads standard input.")],
    *,
    tier: TierOption = "auto",
    python: PythonOption = "",
    cpu_s: CpuOption = 5.0,
    timeout_s: WallOption = 20.0,
    memory_mb: MemoryOption = 512,
) -> None:
    """Run a file in the sandbox and print the result as JSON."""
    code = sys.stdin.read() if file == "-" else _read(Path(file))
    box = _box(_limits(cpu_s, timeout_s, memory_mb, 1), tier, python)

    async def main() -> dict[str, object]:
        async with box:
            return dataclasses.asdict(await box.run(code))

    print(json.dumps(asyncio.run(main()), indent=2))


@sandbox.command()
def serve(
    *,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port to listen on.")] = 8080,
    queue: Annotated[int, typer.Option("--queue", help="Calls that may wait; more are told 429.")] = 256,
    tier: TierOption = "auto",
    python: PythonOption = "",
    cpu_s: CpuOption = 5.0,
    timeout_s: WallOption = 20.0,
    memory_mb: MemoryOption = 512,
    workers: WorkersOption = 0,
) -> None:
    """Serve SandboxFusion's POST /run_code. A token is taken from TORL_SANDBOX_TOKEN."""
    from torl.sandbox.service import serve as serve_http

    token = os.environ.get("TORL_SANDBOX_TOKEN") or None
    if host not in ("127.0.0.1", "::1", "localhost") and token is None:
        say("Everybody who reaches this address can run code: set TORL_SANDBOX_TOKEN.", "yellow")
    box = _box(_limits(cpu_s, timeout_s, memory_mb, workers), tier, python)

    async def main() -> None:
        async with box:
            say(described(await box.start()))
            say(f"listening on http://{host}:{port}/run_code")
            await serve_http(box, host, port, token=token, queue=queue)

    asyncio.run(main())


@sandbox.command()
def bench(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", help="How long each row is measured.")] = 3.0,
    in_flight: Annotated[
        str, typer.Option("--in-flight", help="Calls at once, separated by commas.")
    ] = "1,2,4,8",
    tier: Annotated[
        str, typer.Option("--tier", help="These tiers only, separated by commas; also fork, fresh, bwrap.")
    ] = "",
    python: PythonOption = "",
    batch: Annotated[int, typer.Option("--batch", help="Trajectories a step, for the sizing hint.")] = 96,
    calls: Annotated[float, typer.Option("--calls", help="Calls a trajectory, for the sizing hint.")] = 1.0,
    step_s: Annotated[float, typer.Option("--step-s", help="Seconds a step, for the sizing hint.")] = 15.0,
) -> None:
    """Measure calls a second at rising concurrency, per tier, beside fresh interpreters."""
    from torl.sandbox import bench as benchmark

    rows: list[benchmark.Row] = []

    async def main() -> None:
        found = benchmark.measure(
            seconds=seconds,
            in_flight=_numbers(in_flight),
            tiers=[name for name in tier.split(",") if name],
            python=python or sys.executable,
        )
        async for row in found:
            rows.append(row)
            if not as_json:
                say(_line(row))

    if not as_json:
        say(
            f"{'tier':<8}{'snippet':<10}{'in flight':>9}{'p50 ms':>10}{'p99 ms':>10}{'calls/s':>10}", "bold"
        )
    asyncio.run(main())
    if as_json:
        print(json.dumps(benchmark.as_json(rows), indent=2))
    elif hint := benchmark.sizing(rows, batch=batch, calls=calls, step_s=step_s):
        console.print()
        say(hint)


def described(report: Report) -> str:
    """One line that says what was started."""
    return (
        f"sandbox: tier {report.tier} ({report.layers}), {report.slots} slots, "
        f"{report.python}, preloaded: {report.packages or 'nothing'}"
    )


def _line(row: object) -> str:
    values = vars(row)
    return (
        f"{values['tier']:<8}{values['snippet']:<10}{values['in_flight']:>9}{values['p50_ms']:>10.2f}"
        f"{values['p99_ms']:>10.2f}{values['calls_per_s']:>10.1f}"
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UserError(f"--in-flight={text}: numbers from 1 on, separated by commas, are needed")
    return found


def _limits(cpu_s: float, timeout_s: float, memory_mb: int, workers: int) -> Limits:
    try:
        return Limits(cpu_s=cpu_s, timeout_s=timeout_s, memory_mb=memory_mb, workers=workers)
    except ValueError as error:
        raise UserError(str(error)) from error


def _box(limits: Limits, tier: str, python: str) -> Sandbox:
    if tier not in TIERS:
        raise UserError(f"--tier={tier}: the choices are {', '.join(TIERS)}")
    return Sandbox(limits, python=python or sys.executable, tier=tier)  # type: ignore[arg-type]
