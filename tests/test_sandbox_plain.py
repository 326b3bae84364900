"""The sandbox of systems that have none: a process a call."""

import asyncio
from typing import Any

import pytest

from torl.config import load_recipe
from torl.errors import UserError
from torl.rewards.unit_tests import passes
from torl.sandbox import Limits, Result
from torl.sandbox.plain import PlainSandbox
from torl.tools import PythonTool, load_tools


def run(code: str, *, earlier: tuple[str, ...] = (), **limits: Any) -> Result:
    async def main() -> Result:
        async with PlainSandbox(Limits(**limits)) as box:
            return await box.run(code, earlier=earlier)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(12 * 31)\n'é' * 2", ("ok", 0, None, "372\n", "'éé'")),
        ("print('a')\n1/0", ("error", 1, None, "a\n", "")),
        ("import sys; sys.exit(3)", ("error", 3, None, "", "")),
        ("import os; os.abort()", ("crashed", None, 6, "", "")),
        ("print(input())", ("error", 1, None, "", "")),
        ("open('a', 'w').write('x'); print(open('a').read())", ("ok", 0, None, "x\n", "")),
    ],
)
def test_results(code: str, expected: tuple[object, ...]) -> None:
    result = run(code)
    found = (result.status, result.exit_code, result.signal, result.stdout, result.value)
    assert (found, result.tier) == (expected, "unsafe")


def test_limits() -> None:
    result = run("print('a', flush=True)\nimport time; time.sleep(60)", timeout_s=0.7)
    assert (result.status, result.stdout) == ("timeout_wall", "a\n")
    assert 0.7 <= result.run_s < 5
    result = run("import subprocess\nsubprocess.Popen(['sleep', '60'])", timeout_s=0.7)
    assert result.status == "timeout_wall"  # what it started holds its pipes
    result = run("print('a' * 500_000)")
    assert (result.stdout_bytes, len(result.stdout) < 70_000) == (500_001, True)


def test_earlier_cells_are_replayed_silently() -> None:
    result = run("print(x)", earlier=("x = 1\nprint('no')", "x += 1\n1/0"))
    assert (result.stdout, result.stderr) == ("2\n", "")
    with pytest.raises(UserError, match="session"):
        asyncio.run(PlainSandbox().run("1", session="s"))


def test_it_is_what_unsafe_means_off_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    (tool,) = load_tools(load_recipe("quickstart", ["sandbox=unsafe"]))
    assert isinstance(tool, PythonTool)
    assert isinstance(tool.box, PlainSandbox)
    (tool,) = load_tools(load_recipe("quickstart"))
    assert isinstance(tool, PythonTool)
    with pytest.raises(UserError, match="torl sandbox serve"):
        asyncio.run(tool.start())


def test_standard_input_is_the_codes_own() -> None:
    async def main() -> list[Result]:
        box = PlainSandbox()
        code = "import os, sys\nprint(repr(sys.stdin.readline()), os.read(0, 9))"
        return [await box.run("print(input(), input())", stdin="a\nä\n"), await box.run(code)]

    given, none = asyncio.run(main())
    assert (given.status, given.stdout) == ("ok", "a ä\n")
    assert none.stdout == "'' b''\n"


def test_programs_can_be_tested_in_it() -> None:
    async def main() -> list[bool]:
        programs = ("def f(x):\n    return x", "import os\nos._exit(0)", "print(open(0).read())")
        return [await passes(program, "assert f(2) == 2", PlainSandbox()) for program in programs]

    assert asyncio.run(main()) == [True, False, False]
