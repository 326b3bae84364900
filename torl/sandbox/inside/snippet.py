"""Runs the model's code in a child that is locked down already.

Cells of one trajectory share a module ``__main__``. Nothing here is trusted once the first of
them has run: what the child says of itself (exit code, output, last value) is the program's own
claim, and no verdict rests on it.
"""

from __future__ import annotations

import _ast
import atexit
import builtins
import contextlib
import gc
import linecache
import os
import resource
import site
import sys
import threading
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType, TracebackType
    from typing import Any

FRAMES = 200  # of a traceback: a program may raise the limit of recursion to a million


class Notebook:
    """The module that the cells run in."""

    def __init__(self) -> None:
        self._names: list[str] = []  # what tracebacks call the cells; no such files exist
        self._module = type(sys)("__main__")
        self._module.__dict__.update(__builtins__=builtins)

    def open(self) -> None:
        """Makes the interpreter look as if it had just started on a script."""
        sys.modules["__main__"] = self._module
        site.setquit()  # started with -S, but exit() and help() are expected to be there
        site.sethelper()
        builtins.input = _no_input
        for name in ("random", "numpy.random"):
            if name in sys.modules:
                sys.modules[name].seed(0)  # equal calls give equal numbers
        sys.meta_path.insert(0, _SeededImports())
        gc.enable()

    def run(self, source: str) -> tuple[int, str | None]:
        """Runs a cell. Returns the exit code, and the repr of a last expression's value."""
        name = f"snippet{len(self._names) + 1}.py" if self._names else "snippet.py"
        self._names.append(name)
        source = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        self._module.__dict__.update(__file__=name, __loader__=_Loader(source))
        try:
            return 0, self._execute(source, name)
        except SystemExit as leaving:
            return self._exit_code(leaving), None
        except BaseException as error:
            with contextlib.suppress(BaseException):
                self._report(error)
            return 1, None
        finally:
            flush()  # before atexit handlers run: one that hangs must not eat the output

    def close(self, code: int) -> None:
        """Ends the process as the interpreter ends: threads, atexit handlers, finalizers."""
        for step in (threading._shutdown, atexit._run_exitfuncs, flush, self._module.__dict__.clear):  # type: ignore[attr-defined]
            try:
                step()
            except BaseException:
                code = code or 1
        flush()
        os._exit(code)

    def _execute(self, source: str, name: str) -> str | None:
        tree: Any = compile(source, name, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
        last: CodeType | None = None
        if tree.body and isinstance(tree.body[-1], _ast.Expr):
            last = compile(_ast.Expression(tree.body.pop().value), name, "eval", dont_inherit=True)
        exec(compile(tree, name, "exec", dont_inherit=True), self._module.__dict__)
        value = eval(last, self._module.__dict__) if last is not None else None
        return None if value is None else str(repr(value))

    def _exit_code(self, leaving: SystemExit) -> int:
        if leaving.code is None:
            return 0
        if isinstance(leaving.code, int):
            return leaving.code & 0xFF
        self._write_error(lambda: f"{leaving.code}\n")
        return 1

    def _report(self, error: BaseException) -> None:
        """The traceback on standard error: the cells' frames only, no path of the host."""
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # room to report a MemoryError
        flush()

        def text() -> str:
            report = traceback.TracebackException.from_exception(self._own_part(error), limit=-FRAMES)
            self._strip(report, set())
            return "".join(report.format())

        self._write_error(text, otherwise=type.__dict__["__name__"].__get__(type(error)))

    def _write_error(self, text: Callable[[], str], otherwise: str = "") -> None:
        try:
            data = text()
        except BaseException:  # hostile __str__, no memory
            data = f"{otherwise}\n"
        try:
            rest = data.encode("utf-8", "backslashreplace")
            while rest:
                rest = rest[os.write(2, rest) :]
        except OSError:  # the code closed it
            return

    def _own_part(self, error: BaseException) -> BaseException:
        trace: TracebackType | None = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename not in self._names:
            trace = trace.tb_next
        return error.with_traceback(trace)

    def _strip(self, report: Any, seen: set[int]) -> None:
        """Takes the frames of libraries out of a traceback and out of those that caused it."""
        if report is None or id(report) in seen:
            return
        seen.add(id(report))
        report.stack[:] = [frame for frame in report.stack if frame.filename in self._names]
        for other in (report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())):
            self._strip(other, seen)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # the code may have put anything there
            continue


def _no_input(prompt: object = "", /) -> str:  # noqa: ARG001 (the built-in's signature)
    line = sys.stdin.readline()
    if not line:
        raise EOFError("input() finds nobody to answer: write the value into the code")
    return line.removesuffix("\n")


class _Loader:
    """Lets inspect.getsource and warnings find a cell's lines."""

    def __init__(self, source: str) -> None:
        self._source = source

    def get_source(self, name: str) -> str:  # noqa: ARG002 (the name that linecache calls)
        return self._source


class _SeededImports:
    """Seeds the global generators when they are first imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in ("random", "numpy.random"):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader
                loader.exec_module = _seeding(loader.exec_module)
                return spec
        return None


def _seeding(execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        module.seed(0)

    return exec_module
