"""The catalogue of hostile and of ordinary code (tests/hostile), in every host situation.

Each situation is one process that runs all its cases; each case is a test. The control runs the
cases that can do no harm without any protection: there they must be seen to break something, or
the catalogue would prove nothing.
"""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.catalogue import CASES, CONTROLS
from tests.hostile.hosts import CONTROL, SITUATIONS, Situation, cases_of

ROOT = Path(__file__).parents[1]
PAIRS = [(name, case) for name, situation in SITUATIONS.items() for case in cases_of(situation)]


@functools.cache
def lines(situation: str) -> dict[str, dict[str, Any]]:
    """What the runner says of each case; of the situation itself, under ""."""
    command = [sys.executable, "-m", "tests.hostile.hosts", situation]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if not found or done.returncode:
        return {
            "": {"failed": f"it ended with {done.returncode} after {found[-1:]}: {done.stderr[-3000:]}"}
        }
    return {line.get("case", ""): line for line in found}


def line(situation: str, case: str) -> dict[str, Any]:
    """The line of a case; skips the test when there can be none here."""
    found = lines(situation)
    start = found[""]
    if "failed" in start:
        pytest.fail(start["failed"])
    for said in (start, found[case]):
        if "skip" in said:
            pytest.skip(said["skip"])
    return found[case]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_situation_gives_its_tier(situation: str) -> None:
    start = line(situation, "")
    assert start["tier"] == SITUATIONS[situation].tier, start


@pytest.mark.parametrize(("situation", "case"), PAIRS)
def test_case(situation: str, case: str) -> None:
    said = line(situation, case)
    assert said["complaints"] == [], said["result"]


@pytest.mark.parametrize("case", CONTROLS)
def test_the_case_breaks_out_where_nothing_holds_it(case: str) -> None:
    said = line("control", case)
    result = said["result"]
    text = "\n".join([result["stdout"], result["value"], str(result["signal"]), *said["complaints"]])
    assert re.search(CONTROLS[case].breaks, text), (said["complaints"], result)


def test_the_catalogue_is_large() -> None:
    assert len(CASES) >= 170
    assert len({case.code for case in CASES.values()}) > 0.97 * len(CASES)
    assert isinstance(CONTROL, Situation)
