"""All cases."""

from dataclasses import replace

from . import (
    cases_files,
    cases_kernel,
    cases_library,
    cases_mistakes,
    cases_network,
    cases_output,
    cases_process,
    cases_programs,
    cases_resources,
    cases_science,
    cases_scratch,
    cases_signals,
    cases_state,
)
from .case import Case

SECTIONS = {
    "A": [cases_resources],
    "B": [cases_output],
    "C": [cases_process, cases_signals, cases_kernel],
    "D": [cases_files, cases_scratch],
    "E": [cases_network],
    "F": [cases_state],
    "G": [cases_programs, cases_library, cases_science, cases_mistakes],
}


def _all() -> dict[str, Case]:
    cases = [replace(c, section=s) for s, files in SECTIONS.items() for file in files for c in file.CASES]
    found = {case.id: case for case in cases}
    assert len(found) == len(cases), "two cases have the same name"
    return found


CASES = _all()
CONTROLS = {name: case for name, case in CASES.items() if case.breaks}
