"""What the policy reads of a call, and what becomes of a tool that fails."""

import asyncio
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from torl.config import Recipe
from torl.errors import Bug, ModelMistake, SandboxFault, UserError, WorldFault
from torl.sandbox import Limits
from torl.tools import PythonTool, Tool, ToolContext, function_tool, load_tools
from torl.types import ToolResult

CONTEXT = ToolContext(trajectory_id="t#0", task_id="t", call_number=0)
Ask = Callable[[str], ToolResult]


def call(tool: Tool, text: str = "x") -> ToolResult:
    return asyncio.run(tool(text, CONTEXT))


def python(code: str, **limits: Any) -> ToolResult:
    async def main() -> ToolResult:
        tool = PythonTool(Limits(**limits))
        try:
            return await tool(code, CONTEXT)
        finally:
            await tool.close()

    return asyncio.run(main())


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Asks one Python tool with wide limits."""
    tool = PythonTool(Limits(timeout_s=20.0, cpu_s=20.0))
    yield lambda code: call(tool, code)
    asyncio.run(tool.close())


# --- the Python tool ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print(12 * 31)", "372\n"),
        ("12 * 31", "372\n"),
        ("print('a')\n'b'", "a\n'b'\n"),
        ("print('Error: ZeroDivisionError')", "Error: ZeroDivisionError\n"),
        ("import sys; print('Traceback', file=sys.stderr); print('fine')", "fine\n"),
        ("import warnings; warnings.warn('careful'); print(1)", "1\n"),
        ("x = 1", "(no output: print the values you need)"),
        ("", "(no output: print the values you need)"),
        ("print()", "(no output: print the values you need)"),
    ],
)
def test_success_shows_what_was_printed(ask: Ask, code: str, text: str) -> None:
    result = ask(code)
    assert (result.text, result.status, result.ok, result.executed) == (text, "ok", True, True)
    assert result.run_s > 0
    assert result.queue_s >= 0


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("1/0", "error", "ZeroDivisionError: division by zero"),
        ("print('so far')\n1/0", "error", "so far\nZeroDivisionError: division by zero"),
        ("print('so far', end='')\n1/0", "error", "so far\nZeroDivisionError: division by zero"),
        ("print()\n1/0", "error", "ZeroDivisionError: division by zero"),
        ("print('a'", "error", "SyntaxError: '(' was never closed"),
        ("raise ValueError('first\\nlast')", "error", "last"),
        ("import sys; sys.exit('fatal')", "error", "fatal"),
        ("import os; os._exit(125)", "error", "exited with code 125"),
        ("print(1)\nimport os; os.abort()", "crashed", "1\ncrashed: SIGABRT (Aborted)"),
        ("import os; os.kill(os.getpid(), 40)", "crashed", "crashed: signal 40"),
        ("while True: print('a' * 9**6)", "output_limit", "stopped: printed more than 8 MB"),
    ],
)
def test_failure_shows_what_was_printed_and_one_line(ask: Ask, code: str, status: str, text: str) -> None:
    result = ask(code)
    assert (result.status, result.ok, result.executed) == (status, False, True)
    if status == "output_limit":
        assert result.text.endswith(f"\n{text}")
    else:
        assert result.text == text


def test_long_output_says_how_much_was_cut(ask: Ask) -> None:
    assert "\n[... 34464 bytes cut ...]\n" in ask("print('a' * 99_999)").text


def test_a_timeout_says_so_with_its_limit() -> None:
    result = python("print('a')\nimport time; time.sleep(60)", timeout_s=0.5)
    assert (result.status, result.text) == ("timeout", "a\ntimed out: stopped after 0.5 s")
    result = python("while True: pass", cpu_s=0.25)
    assert (result.status, result.text) == ("timeout", "timed out: used its 0.25 s of processor time")


def test_out_of_memory_says_so_with_its_limit() -> None:
    code = "import os, time\na = bytearray(b'x') * (100 << 20)\ntime.sleep(0.2)\nos.kill(os.getpid(), 9)"
    result = python(code, memory_mb=150)
    assert (result.status, result.text) == ("oom", "out of memory: the limit is 150 MB")


def episode(*calls: str, **options: Any) -> list[ToolResult]:
    """The results of one trajectory's calls."""

    async def main() -> list[ToolResult]:
        tool = PythonTool(Limits(timeout_s=20.0, cpu_s=1.0, workers=1), **options)
        async with AsyncExitStack() as ending:
            contexts = [ToolContext("t#0", "t", n, ending) for n in range(len(calls))]
            found = [await tool(code, context) for code, context in zip(calls, contexts, strict=True)]
        assert tool._earlier == {}
        await tool.close()
        return found

    return asyncio.run(main())


CELLS = ("x = 1\nprint('once')", "x += 1\n1/0", "while True: pass", "x")


@pytest.mark.parametrize(
    ("state", "texts"),
    [
        (
            "none",
            [
                "once\n",
                "NameError: name 'x' is not defined",
                "timed out: used its 1 s of processor time",
                "NameError: name 'x' is not defined",
            ],
        ),
        (
            "replay",
            [
                "once\n",
                "ZeroDivisionError: division by zero",
                "timed out: used its 1 s of processor time",
                "2\n",
            ],
        ),
        (
            "session",
            [
                "once\n",
                "ZeroDivisionError: division by zero",
                "timed out: used its 1 s of processor time; a new session follows, "
                "without the earlier variables",
                "NameError: name 'x' is not defined",
            ],
        ),
    ],
)
def test_what_a_call_sees_of_the_earlier_ones(state: str, texts: list[str]) -> None:
    assert [result.text for result in episode(*CELLS, state=state)] == texts


def test_a_last_value_may_be_left_out() -> None:
    (result,) = episode("print('a')\n5", last_value=False)
    assert result.text == "a\n"
    (result,) = episode("5", last_value=False)
    assert result.text == "(no output: print the values you need)"


def test_the_tool_says_what_it_runs_on_and_how_it_has_been_doing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> tuple[dict[str, str], dict[str, float], dict[str, float]]:
        tool = PythonTool(Limits(workers=1))
        said = await tool.start()
        await asyncio.gather(*(tool(code, CONTEXT) for code in ("1", "1/0", "2")))
        good = tool.metrics()
        await tool.close()
        with pytest.raises(SandboxFault):
            await tool("1", CONTEXT)
        return said, good, tool.metrics()

    said, good, bad = asyncio.run(main())
    assert said["sandbox"].startswith("tier ")
    assert (good["sandbox/calls"], good["sandbox/ok"], good["sandbox/error"]) == (3, 2, 1)
    assert 0 < good["sandbox/run_p50_s"] <= good["sandbox/run_p99_s"] < 20
    assert (bad["sandbox/calls"], bad["sandbox/sandbox_error"]) == (1, 1)
    assert "1 of 1 calls were lost by the sandbox" in caplog.text


def test_a_fault_of_the_sandbox_is_no_result() -> None:
    async def main() -> None:
        tool = PythonTool()
        await tool.close()
        await tool("1", CONTEXT)

    with pytest.raises(SandboxFault):
        asyncio.run(main())


# --- functions as tools ---------------------------------------------------------------------


def shout(text: str) -> str:
    return text.upper()


async def whisper(text: str) -> str:
    await asyncio.sleep(0)
    return text.lower()


def who(text: str, context: ToolContext) -> str:
    return f"{text} {context.trajectory_id} {context.call_number}"


class Counter:
    """An object with an async __call__ and a name."""

    __name__ = "counter"

    async def __call__(self, text: str) -> int:
        return len(text)


@pytest.mark.parametrize(
    ("fn", "name", "text"),
    [
        (shout, "shout", "AB"),
        (whisper, "whisper", "ab"),
        (who, "who", "Ab t#0 0"),
        (Counter(), "counter", "2"),
    ],
)
def test_a_function_becomes_a_tool(fn: Callable[..., Any], name: str, text: str) -> None:
    tool = function_tool(fn)
    result = call(tool, "Ab")
    assert (tool.name, result.text, result.status) == (name, text, "ok")
    assert result.run_s > 0
    asyncio.run(tool.close())


@pytest.mark.parametrize(("value", "text"), [(None, "None"), (3.5, "3.5"), (["a"], "['a']"), ("", "")])
def test_any_value_is_shown_by_str(value: object, text: str) -> None:
    def give(text: str) -> object:  # noqa: ARG001
        return value

    assert call(function_tool(give)).text == text


def test_a_tool_result_is_passed_on_and_not_changed() -> None:
    shared = ToolResult("done", status="ok", stop=True)

    def finish(text: str) -> ToolResult:  # noqa: ARG001
        return shared

    result = call(function_tool(finish))
    assert (result.text, result.stop, shared.run_s) == ("done", True, 0.0)
    assert result.run_s > 0


def test_a_second_parameter_with_a_default_keeps_it() -> None:
    def digits(text: str, base: int = 10) -> int:
        return int(text, base)

    def named(text: str, context: ToolContext | None = None) -> str:
        return f"{text}{context is CONTEXT}"

    assert call(function_tool(digits), "12").text == "12"
    assert call(function_tool(named), "a").text == "aTrue"


def test_plain_functions_run_beside_the_event_loop_and_each_other() -> None:
    barrier = threading.Barrier(20)  # passed only when all run at once

    def meet(text: str) -> str:
        barrier.wait(10)
        return text

    async def main() -> list[ToolResult]:
        tool = function_tool(meet)
        return list(await asyncio.gather(*(tool(str(i), CONTEXT) for i in range(20))))

    assert [r.text for r in asyncio.run(main())] == [str(i) for i in range(20)]


def fail_with(error: BaseException) -> list[Callable[[str], Any]]:
    def plain(text: str) -> str:  # noqa: ARG001
        raise error

    async def coroutine(text: str) -> str:  # noqa: ARG001
        raise error

    return [plain, coroutine]


def test_the_models_mistake_is_told_to_it() -> None:
    for fn in fail_with(ModelMistake("no such city: Atlantis")):
        result = call(function_tool(fn))
        assert (result.text, result.status, result.executed) == ("no such city: Atlantis", "error", True)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("k"),
        TimeoutError("its own"),
        StopIteration(),
        SystemExit(1),
        OSError(5, "io"),
    ],
)
def test_any_other_error_is_the_worlds_fault_and_names_the_tool(error: BaseException) -> None:
    for fn in fail_with(error):
        with pytest.raises(WorldFault, match=r"tool '(plain|coroutine)' failed") as caught:
            call(function_tool(fn))
        cause = caught.value.__cause__
        assert cause is error or (isinstance(cause, RuntimeError) and cause.__cause__ is error)
        assert cause.__traceback__ is not None


@pytest.mark.parametrize("error", [WorldFault("the database is away"), SandboxFault("gone"), Bug("ours")])
def test_a_fault_that_is_named_already_passes(error: Exception) -> None:
    for fn in fail_with(error):
        with pytest.raises(type(error)) as caught:
            call(function_tool(fn))
        assert caught.value is error


def test_an_answer_that_cannot_be_shown_is_the_tools_failure() -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError("mute")

    def mute(text: str) -> Mute:  # noqa: ARG001
        return Mute()

    with pytest.raises(WorldFault, match="mute"):
        call(function_tool(mute))


def test_a_timeout_is_the_worlds_fault_and_holds_nothing_up() -> None:
    release = threading.Event()

    def stuck(text: str) -> str:
        release.wait(30)
        return text

    async def slow(text: str) -> str:
        await asyncio.sleep(30)
        return text

    started = time.monotonic()
    for fn in (stuck, slow):
        with pytest.raises(WorldFault, match=r"gave no answer within 0\.1 s"):
            call(function_tool(fn, timeout_s=0.1))
    assert time.monotonic() - started < 10
    release.set()


def test_a_cancelled_call_stays_cancelled() -> None:
    release = threading.Event()

    def stuck(text: str) -> str:
        release.wait(30)
        return text

    async def main() -> None:
        task = asyncio.create_task(function_tool(stuck)("x", CONTEXT))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    release.set()


@pytest.mark.parametrize(
    "fn", [lambda text: text, functools.partial(shout), Counter, print.__class__, lambda: None]
)
def test_a_function_without_a_usable_name_or_signature_is_refused(fn: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="cannot be a tool"):
        function_tool(fn)


def test_signatures_that_cannot_be_called_are_refused() -> None:
    def nothing() -> None: ...
    def three(a: str, b: str, c: str) -> None: ...
    def keyword(text: str, *, unit: str) -> None: ...
    def output(text: str) -> None: ...

    for fn in (nothing, three, keyword, output):
        with pytest.raises(UserError, match="cannot be a tool"):
            function_tool(fn)


def test_names_are_lower_case_as_fences_are_read() -> None:
    def Solve(text: str) -> str:
        return text

    assert function_tool(Solve).name == "solve"


# --- the tools of a recipe ------------------------------------------------------------------


@pytest.fixture
def my_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module my_tools in the working directory."""
    (tmp_path / "my_tools.py").write_text(
        "from torl.tools import function_tool\n"
        "def solve(text):\n    return 'solved ' + text\n"
        "ready = function_tool(solve, timeout_s=1.0)\nnumber = 3\n"
    )
    (tmp_path / "broken_tools.py").write_text("1/0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_tools", None)


def load(*names: str, **changes: Any) -> list[Tool]:
    return load_tools(Recipe(tools=list(names)).override(**changes))


@pytest.mark.usefixtures("my_tools")
def test_a_recipe_names_its_tools() -> None:
    tools = load("python", "my_tools:solve", **{"sandbox.memory_mb": 300, "sandbox.workers": 1})
    assert [tool.name for tool in tools] == ["python", "solve"]
    assert call(tools[0], "a = bytearray(200 << 20)\nprint('fits')").text == "fits\n"
    assert call(tools[0], "a = bytearray(320 << 20)").text == "MemoryError"
    assert call(tools[1], "it").text == "solved it"
    for tool in tools:
        asyncio.run(tool.close())


@pytest.mark.usefixtures("my_tools")
def test_an_object_that_is_a_tool_is_taken_as_it_is() -> None:
    (tool,) = load("my_tools:ready")
    assert tool is sys.modules["my_tools"].ready


def test_a_recipe_without_tools_has_none() -> None:
    assert load_tools(Recipe(tools="none")) == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["pyhton"], r"no tool named 'pyhton'. Did you mean python\? Choices: python; pkg.module:function"),
        (["my_tools:"], "'my_tools:' is not an import path"),
        (["my_tools:slove"], r"no 'slove'. Did you mean solve\? Choices there: .*ready, solve"),
        (["my_tools:number"], "a int, not a function"),
        (["no_such_module:fn"], "No module named 'no_such_module'; it must be installed"),
        (["broken_tools:fn"], "ZeroDivisionError: division by zero"),
        (["my_tools:solve", "my_tools:ready"], "two tools are named 'solve'"),
        (["python", "python"], "two tools are named 'python'"),
    ],
)
@pytest.mark.usefixtures("my_tools")
def test_a_tool_that_cannot_be_had_is_explained(names: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(*names)


def test_impossible_sandbox_limits_are_explained() -> None:
    with pytest.raises(UserError, match="memory_mb=8 must be at least 16"):
        load("python", **{"sandbox.memory_mb": 8})
