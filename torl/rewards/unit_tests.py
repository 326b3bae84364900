"""Runs a program and the task's tests for it in the sandbox. Only the tests' end counts, not what is said.

One script runs the program, then the tests in the same module, and then shows a word. The tests and the
word come on standard input: the tests are read when the program has run, the word (drawn anew for each
run) when the tests have passed. Until then it is in no variable, no source and no frame, but lies unread
behind a descriptor with a number of its own. So a program does not pass by

- printing "ok", "passed", or whatever it finds in its source, its frames or ``__main__``;
- ``exit(0)``, ``sys.exit``, ``os._exit(0)`` or an exception that skips the tests: the word is never shown;
- catching what the tests raise, since they are no part of it; nor by replacing ``print``, ``exec``,
  ``sys.stdout``, ``os.read`` or ``os.write``, which the script took hold of before;
- reading standard input, which is empty for it; nor by handlers at exit, threads or finalizers, since the
  process ends with the word.

Not prevented, because both live in one process: a program that sets out to deceive. It can return
objects whose ``__eq__`` always says yes, replace a function that the tests call (``math.isclose``), or try
all descriptors and read the word. Tests that compare types, too (``type(f(2)) is int and f(2) == 4``), and
call nothing but the program leave the first two out. Nor can it be told whether a program knows the
tests' inputs and outputs by heart.
"""

import ast
import secrets
import warnings
from typing import Any

from torl.errors import UserError, VerifierFault
from torl.tools.python import Box
from torl.types import Task

_SCRIPT = """
def _torl_run(program, size):
    import os, sys
    read, write, leave, run, make = os.read, os.write, os._exit, exec, compile
    given, shown = os.dup(0), os.dup(1)
    empty, end = os.pipe()
    os.close(end)
    os.dup2(empty, 0)
    os.close(empty)
    module = globals()
    module["__name__"] = "program"
    sys.modules["program"] = sys.modules["__main__"]
    del module["_torl_run"]
    run(make(program, "program.py", "exec", dont_inherit=True), module)
    tests = b""
    while size > len(tests):
        tests += read(given, size - len(tests))
    run(make(tests.decode(), "tests.py", "exec", dont_inherit=True), module)
    write(shown, b"\\n" + read(given, 64) + b"\\n")
    leave(0)


"""


async def passes(program: str, tests: str, box: Box) -> bool:
    """Whether a program passes tests, both Python source, within the sandbox's limits.

    Code under ``if __name__ == "__main__"`` does not run. Raises VerifierFault when the sandbox, and not
    the program, failed.
    """
    word = secrets.token_hex(16)
    call = f"_torl_run({program!r}, {len(tests.encode())})\n"
    result = await box.run(_SCRIPT + call, stdin=tests + word)
    if result.status == "sandbox_error":
        raise VerifierFault(f"the sandbox failed to run the tests: {result.reason}")
    return word in result.stdout


def source_of_tests(task: Task) -> str:
    """``task.meta["tests"]``: Python source, or a list of pieces of it.

    Raises UserError naming the task when there are none, or none that Python can read.
    """
    tests: Any = task.meta.get("tests")
    if isinstance(tests, list) and all(isinstance(piece, str) for piece in tests):
        tests = "\n".join(tests)
    if not isinstance(tests, str) or not tests.strip():
        raise UserError(
            f"task {task.id}: correctness.how=tests needs meta['tests'], Python source that raises when "
            "the program is wrong, e.g. 'assert double(2) == 4'"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(tests)
    except (SyntaxError, ValueError) as error:
        raise UserError(f"task {task.id}: its tests are not Python: {error}") from error
    return tests
