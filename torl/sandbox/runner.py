"""Runs one snippet, in a process of its own. Started by child.py as a script; never imported.

    python runner.py ACK_FD CPU_S MEMORY_MB FILE_MB PROCESSES DESCRIPTORS ALARM_S PATH <CODE

Reads the code from standard input, closes that, takes on the limits, writes one byte to ACK_FD
and closes it: from there on the process is the snippet's, with descriptors 0 to 2 only.

Imports cost each call, so this file lives on built-in modules: ``_ast`` and ``_signal`` are
built into the interpreter, while ``ast``, ``signal`` and ``typing`` cost milliseconds.
"""

from __future__ import annotations  # so that nothing is imported for annotations

import _ast
import _signal  # type: ignore[import-not-found]
import builtins
import os
import resource
import site
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType, TracebackType
    from typing import Any

NAME = "snippet.py"  # what tracebacks call the code; no such file exists
SPARE = 64 << 20  # bytes of address space for reporting a MemoryError


def main() -> None:
    ack, limits, path = int(sys.argv[1]), [int(a) for a in sys.argv[2:8]], sys.argv[8]
    source = _read_source()
    sys.path[:] = path.split(os.pathsep)
    sys.argv[:] = [NAME]
    _prepare_streams()
    module = _main_module(source)
    sys.meta_path.insert(0, _SeededImports())
    _take_limits(limits)
    os.write(ack, b"R")
    os.close(ack)
    try:
        _execute(source, module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        _report(error)
        sys.exit(1)
    finally:
        _flush()  # before atexit handlers run: one that hangs must not eat the output


def _read_source() -> str:
    """The code, with the line ends and the byte-order mark of other systems taken off."""
    with open(0, "rb", closefd=False) as stream:
        data = stream.read()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # input() ends at once
    os.close(null)
    source = data.decode("utf-8", "surrogatepass").removeprefix("\ufeff")
    return source.replace("\r\n", "\n").replace("\r", "\n")


def _prepare_streams() -> None:
    """Text goes out line by line, so that a kill loses nothing; nothing is unprintable."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(  # type: ignore[union-attr]
            encoding="utf-8", errors="backslashreplace", line_buffering=True
        )


def _take_limits(wanted: list[int]) -> None:
    """The kernel's limits. The parent's clock is finer; these hold when the parent is gone."""
    cpu_s, memory_mb, file_mb, processes, descriptors, alarm_s = wanted
    memory = memory_mb << 20
    _limit(resource.RLIMIT_CORE, 0, 0)
    _limit(resource.RLIMIT_FSIZE, file_mb << 20, file_mb << 20)
    _limit(resource.RLIMIT_NOFILE, descriptors, descriptors)
    _limit(resource.RLIMIT_NPROC, processes, processes)
    _limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)
    _limit(resource.RLIMIT_AS, memory, memory + SPARE)
    _signal.setitimer(_signal.ITIMER_REAL, alarm_s)


def _limit(kind: int, soft: int, hard: int) -> None:
    """Sets a limit, or keeps the inherited one where that is lower."""
    inherited = resource.getrlimit(kind)[1]
    if inherited != resource.RLIM_INFINITY:
        soft, hard = min(soft, inherited), min(hard, inherited)
    resource.setrlimit(kind, (soft, hard))


class _Loader:
    """Lets tracebacks, warnings and inspect.getsource find the snippet's lines."""

    def __init__(self, source: str) -> None:
        self._source = source

    def get_source(self, name: str) -> str:  # noqa: ARG002 (the name that linecache calls)
        return self._source


def _main_module(source: str) -> ModuleType:
    """A fresh __main__, in sys.modules so that classes of the snippet can be pickled."""
    module = type(sys)("__main__")
    module.__dict__.update(__file__=NAME, __loader__=_Loader(source), __builtins__=builtins)
    sys.modules["__main__"] = module
    site.setquit()  # started with -S, but exit() and help() are expected to be there
    site.sethelper()
    return module


class _SeededImports:
    """Seeds the global generators when they are first imported: equal calls, equal numbers."""

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


def _execute(source: str, scope: dict[str, Any]) -> None:
    """Runs the code; a final expression's value is printed as a notebook does, None is not."""
    tree: Any = compile(source, NAME, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    last: CodeType | None = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = compile(_ast.Expression(tree.body.pop().value), NAME, "eval", dont_inherit=True)
    exec(compile(tree, NAME, "exec", dont_inherit=True), scope)
    value = eval(last, scope) if last is not None else None
    if value is not None:
        sys.stdout.write(repr(value) + "\n")


def _report(error: BaseException) -> None:
    """The traceback on standard error: the snippet's frames only, no path of the host."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # room to report a MemoryError
    try:
        _flush()
        import traceback

        report = traceback.TracebackException.from_exception(_own_part(error))
        _strip(report, set())
        text = "".join(report.format())
    except BaseException:
        text = f"{type(error).__name__}\n"
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:  # the snippet closed it
        return


def _own_part(error: BaseException) -> BaseException:
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != NAME:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _strip(report: Any, seen: set[int]) -> None:
    """Takes the frames of libraries out of a traceback and out of those that caused it."""
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    report.stack[:] = [frame for frame in report.stack if frame.filename == NAME]
    for other in (report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())):
        _strip(other, seen)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # the snippet may have put anything there
            continue


if __name__ == "__main__":
    main()
