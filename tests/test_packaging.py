"""Tests of the package: what the wheel holds, and that the pinned versions fit the ranges."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy, so that no build folder is left in the repository."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "torl", source / "torl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out", "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(next((source / "out").glob("torl-*-py3-none-any.whl")))


def test_every_file_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    """Recipes and prompts above all: setuptools leaves out data that is not declared."""
    files = [
        path for path in (ROOT / "torl").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    expected = {path.relative_to(ROOT).as_posix() for path in files}
    assert "torl/recipes/quickstart.yaml" in expected
    assert expected <= set(wheel.namelist())


def test_nothing_else_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0] for name in wheel.namelist()} == {
        "torl",
        f"torl-{PROJECT['version']}.dist-info",
    }


def test_the_wheel_names_its_command_and_licence(wheel: zipfile.ZipFile) -> None:
    info = f"torl-{PROJECT['version']}.dist-info"
    assert "torl = torl.cli:app" in wheel.read(f"{info}/entry_points.txt").decode()
    assert "Apache License" in wheel.read(f"{info}/licenses/LICENSE").decode()
    metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in pairs}


def test_the_pinned_versions_fit_the_ranges() -> None:
    pinned = constraints()
    declared = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, declared):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


def test_the_pinned_versions_install_anywhere() -> None:
    """No local paths and no local version tags, which no index has."""
    assert all(version and set("+/@ ").isdisjoint(version) for version in constraints().values())
