"""The catalogue of hostile and of ordinary code (tests/hostile), in every host situation.

Each situation is one process that runs all its cases; each case is a test. The control runs the
cases that can do no harm without any protection: there they must be seen to break something, or
the catalogue would prove nothing.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.catalogue import CASES, CONTROLS
from tests.hostile.hosts import SITUATIONS, cases_of

ROOT = Path(__file__).parents[1]
PAIRS = [(name, case) for name, situation in SITUATIONS.items() for case in cases_of(situation)]
AT_ONCE = 2  # a situation alone leaves cores idle: some cases wait, and some run alone

Line = dict[str, Any]
Lookup = Callable[[str, str], Line]


def run(situation: str) -> dict[str, Line]:
    """What the runner says of each case; of the situation itself, under ""."""
    command = [sys.executable, "-m", "tests.hostile.hosts", situation]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    found = {line.get("case", ""): line for line in map(json.loads, done.stdout.splitlines())}
    if done.returncode or not found:
        found[""] = {"failed": f"it ended with {done.returncode}: {done.stderr[-3000:]}"}
    return found


@pytest.fixture(scope="session")
def line(request: pytest.FixtureRequest) -> Iterator[Lookup]:
    """Finds the line of a case. All situations that have a test are started at the first look."""
    wanted = [
        item.callspec.params.get("situation") for item in request.session.items if hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs: dict[str, Future[dict[str, Line]]] = {
            name: pool.submit(run, name)
            for name in dict.fromkeys(wanted)
            if name in [*SITUATIONS, "control"]
        }

        def look(situation: str, case: str) -> Line:
            found = runs[situation].result()
            for said in (found[""], found.get(case, {})):
                if "skip" in said:
                    pytest.skip(said["skip"])
            if case and case not in found:
                pytest.skip("the situation's own test has failed")
            return found[case]

        yield look
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("situation", [*SITUATIONS, "control"])
def test_the_situation_gives_its_tier(situation: str, line: Lookup) -> None:
    start = line(situation, "")
    assert "failed" not in start, start["failed"]
    assert start["tier"] == start["wanted"], start


@pytest.mark.parametrize(("situation", "case"), PAIRS)
def test_case(situation: str, case: str, line: Lookup) -> None:
    said = line(situation, case)
    assert said["complaints"] == [], said["result"]


@pytest.mark.parametrize("case", CONTROLS)
@pytest.mark.parametrize("situation", ["control"])
def test_the_case_breaks_out_where_nothing_holds_it(situation: str, case: str, line: Lookup) -> None:
    said = line(situation, case)
    result = said["result"]
    text = "\n".join([result["stdout"], result["value"], str(result["signal"]), *said["complaints"]])
    assert re.search(CONTROLS[case].breaks, text), (said["complaints"], result)


def test_the_catalogue_is_large() -> None:
    assert len(CASES) >= 170
    assert len({case.code for case in CASES.values()}) > 0.97 * len(CASES)
