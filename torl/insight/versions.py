"""What a run ran on: enough to run it again."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torl

_PACKAGES = ("torl", "torch", "transformers", "numpy", "math-verify")


def versions() -> dict[str, str | int | None]:
    """Python, the packages that decide numbers, torl's commit in a checkout, platform, cores."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "git_commit": _commit(Path(torl.__file__).resolve().parent.parent),
        "platform": platform.platform(),
        "cores": cores(),
    }


def cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit(root: Path) -> str | None:
    """The commit of torl's own checkout, with "-dirty" when files differ from it."""
    if not (root / ".git").exists():  # an installed torl may lie inside someone else's repository
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
