"""Tests of torl.doctor: every finding is real, and a missing part is said with its remedy."""

import re
import sys
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from rich.console import Console

from torl import doctor, weights
from torl.sandbox import Report

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")


def test_it_finds_something_about_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=200, file=sys.stdout)
    doctor.print_doctor(console)
    shown = capsys.readouterr().out
    for name in (
        "cores",
        "memory",
        "disk",
        "bf16 matmul",
        "kernels",
        "gpu",
        "bundled weights",
        "transformers",
        "ray (optional)",
    ):
        assert name in shown


def test_a_failed_finding_makes_the_doctor_false(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(quiet=True)
    monkeypatch.setattr(
        doctor, "findings", lambda: [doctor.Finding("a", "[b]"), doctor.Finding("c", "d", "warn")]
    )
    assert doctor.print_doctor(console)
    monkeypatch.setattr(doctor, "findings", lambda: [doctor.Finding("a", "b", "fail")])
    assert not doctor.print_doctor(console)


def test_the_machine_has_cores_memory_and_disk(tmp_path: Path) -> None:
    assert doctor.usable_cores() > 0
    assert doctor.usable_memory_gib() > 0
    assert doctor.free_disk_gib(tmp_path / "not" / "made" / "yet") > 0


def test_a_container_with_less_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/sys/fs/cgroup/cpu.max": "50000 100000", "/sys/fs/cgroup/memory.max": str(2**30)}
    monkeypatch.setattr(doctor, "_read", lambda path: files.get(path, ""))
    assert doctor.usable_cores() == 0.5
    assert doctor.usable_memory_gib() == 1.0
    by_name = {finding.name: finding for finding in doctor.machine()}
    assert by_name["cores"].status == by_name["memory"].status == "warn"


def test_a_product_takes_time() -> None:
    assert 0 < doctor.matmul_gflops(torch.float32, size=64, seconds=0.01) < 1e6


def test_slow_bfloat16_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "matmul_gflops", lambda dtype: 100.0 if dtype is torch.float32 else 10.0)
    slow = doctor.speed()[1]
    assert slow.status == "warn"
    assert "dtype=float32" in slow.hint


def test_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/nvidia-smi")
    assert doctor.gpu().status == "warn"
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert doctor.gpu() == doctor.Finding("gpu", "none", "ok", "the cpu recipes and quickstart need none")


@linux
def test_the_sandbox_is_started_and_says_its_tier() -> None:
    found = {finding.name: finding for finding in doctor.sandbox()}
    assert re.match(r"tier [ABCD]: ", found["sandbox"].value)
    assert (found["sandbox"].status == "ok") == found["sandbox"].value.startswith("tier A")
    assert "numpy" in found["sandbox packages"].value


@linux
def test_weaker_tiers_name_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("B", "Landlock + seccomp (read)", {}, ["A (namespaces as user): refused"], "python", 2)

    async def started() -> Report:
        return report

    monkeypatch.setattr(doctor, "_started_sandbox", started)
    found = doctor.sandbox()
    assert [(f.name, f.status) for f in found[:2]] == [("sandbox", "warn"), ("stronger sandbox", "warn")]
    assert "no scratch directory" in found[0].hint
    assert "refused" in found[1].hint


def test_where_there_is_no_sandbox_the_remedies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    (found,) = doctor.sandbox()
    assert found.status == "fail"
    assert "torl sandbox serve" in found.hint
    assert "unsafe" in found.hint


def test_weights_that_are_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORL_CACHE", str(tmp_path))
    assert doctor.weights().status == "warn"
    for name in weights.BUNDLED:
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").touch()
    assert doctor.weights().status == "ok"


def test_dependencies_are_held_against_their_ranges() -> None:
    assert doctor._dependency(Requirement("torch>=2")).status == "ok"
    assert doctor._dependency(Requirement("torch>=999")).status == "warn"
    missing = doctor._dependency(Requirement("no-such-package-at-all>=1"))
    assert (missing.status, missing.hint) == ("fail", "pip install 'no-such-package-at-all>=1'")


def test_all_declared_dependencies_are_shown() -> None:
    assert {"torch", "transformers", "math-verify"} <= {finding.name for finding in doctor.dependencies()}
    assert "pytest" not in {finding.name for finding in doctor.dependencies()}
