"""G: programs with mistakes, and sources of odd shapes."""

from .case import BUSY, Case


def fails(name: str, code: str, err: str, exit_code: int = 1) -> Case:
    return Case(name, code, "error", err=err, exit_code=exit_code)


def works(name: str, code: str, out: str) -> Case:
    return Case(name, code, out=out)


BROKEN_SOURCES = {
    "unclosed": ("print('a'", r"SyntaxError: '\(' was never closed"),
    "unclosed_string": ("x = 'abc", "SyntaxError: unterminated string"),
    "unclosed_triple": ("x = '''abc", "SyntaxError: unterminated triple"),
    "indentation": ("def f():\nreturn 1", "IndentationError: expected an indented block"),
    "unindent": ("if 1:\n        x = 1\n    y = 2", "IndentationError: unindent"),
    "tabs_and_spaces": ("if 1:\n\tx = 1\n        y = 2", "TabError"),
    "stray_prompt": (">>> print(1)", "SyntaxError: invalid syntax"),
    "fence": ("```python\nprint(1)\n```", "SyntaxError: invalid syntax"),
    "prose": ("The answer is 42.", "SyntaxError: invalid syntax"),
    "quotes": ("print(“a”)", "SyntaxError: invalid character"),
    "python_2": ("print 'a'", "SyntaxError: Missing parentheses"),
    "return_outside": ("return 5", "SyntaxError: 'return' outside function"),
    "await_outside": ("import asyncio\nawait asyncio.sleep(0)", "SyntaxError: 'await' outside function"),
    "yield_outside": ("yield 5", "SyntaxError: 'yield' outside function"),
    "nul": ("print(1)\x00", "null bytes"),
    "late_future": ("x = 1\nfrom __future__ import annotations", "SyntaxError: from __future__"),
    "form_feed_error": ("\x0cif", "SyntaxError"),
    "cookie": ("# coding: no-such-encoding\nprint(1) +", "SyntaxError"),
    "long_number": ("x = " + "1" * 5000, "SyntaxError: Exceeds the limit"),
    "assignment": ("1 = x", "SyntaxError: cannot assign"),
    "control_character": ("x = 1\x01", "SyntaxError: invalid non-printable"),
}
RUNTIME = {
    "zero": ("1 / 0", "ZeroDivisionError: division by zero"),
    "name": ("print(undefined_name)", "NameError: name 'undefined_name' is not defined"),
    "type": ("'a' + 1", "TypeError: can only concatenate"),
    "index": ("[][1]", "IndexError: list index out of range"),
    "key": ("{}['k']", "KeyError: 'k'"),
    "attribute": ("import math\nmath.sqroot(4)", "AttributeError: module 'math'"),
    "value": ("int('a')", "ValueError: invalid literal"),
    "unpack": ("a, b = 1, 2, 3", "ValueError: too many values"),
    "assertion": ("assert 1 == 2, 'no'", "AssertionError: no"),
    "module": ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
    "digits": ("print(2**100_000)", "ValueError: Exceeds the limit"),
    "overflow": ("import math\nmath.exp(1000)", "OverflowError"),
    "unhashable": ("{[]: 1}", "TypeError: unhashable"),
    "mutation": ("d = {1: 1}\nfor k in d: d[k + 1] = 1", "RuntimeError: dictionary changed size"),
    "iteration": ("next(iter([]))", "StopIteration"),
    "no_input": ("name = input('who? ')", "EOFError"),
    "encoding": ("b'\\xff'.decode()", "UnicodeDecodeError"),
    "surrogate": ("'\\ud800'.encode()", "UnicodeEncodeError"),
    "file": ("open('no-such-file.txt')", "FileNotFoundError|PermissionError"),
    "await_missing": ("async def f(): pass\nf().send(1)", "TypeError"),
    "sympy": ("from sympy import *\nsolve(undefined_symbol)", "NameError"),
    "numpy_shapes": ("import numpy as np\nnp.ones(2) @ np.ones(3)", "ValueError: matmul"),
    "singular": ("import numpy as np\nnp.linalg.inv(np.zeros((2, 2)))", "LinAlgError: Singular matrix"),
    "chained": (
        "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e",
        "KeyError: 'a'(?s:.*)ValueError: b",
    ),
    "in_finally": ("try: 1 / 0\nfinally: print('f')", "ZeroDivisionError"),
    "deep_in_library": ("import json\njson.loads('{')", r'File "snippet.py", line 2(?s:.*)JSONDecodeError'),
    "in_function": ("def g():\n    return 1 / 0\ng()", r"line 2, in g\n    return 1 / 0"),
}
EXITS = {
    "none": ("import sys\nsys.exit()", 0, ""),
    "zero": ("import sys\nsys.exit(0)", 0, ""),
    "three": ("import sys\nsys.exit(3)", 3, ""),
    "message": ("import sys\nsys.exit('fatal: no')", 1, "^fatal: no$"),
    "negative": ("import sys\nsys.exit(-1)", 255, ""),
    "large": ("import sys\nsys.exit(259)", 3, ""),
    "true": ("import sys\nsys.exit(True)", 1, ""),
    "false": ("import sys\nsys.exit(False)", 0, ""),
    "tuple": ("import sys\nsys.exit((1, 2))", 1, r"\(1, 2\)"),
    "float": ("import sys\nsys.exit(2.0)", 1, r"2\.0"),
    "raised": ("raise SystemExit(4)", 4, ""),
    "builtin": ("exit(5)", 5, ""),
    "in_try": ("try:\n    exit(6)\nexcept Exception: print('no')", 6, ""),
    "in_finally": ("import sys\ntry: 1 / 0\nfinally: sys.exit(7)", 7, ""),
    "huge": ("import sys\nsys.exit(1 << 100)", None, ""),
}

CASES = [
    *[fails(f"source_{name}", code, err) for name, (code, err) in BROKEN_SOURCES.items()],
    *[fails(f"error_{name}", code, err) for name, (code, err) in RUNTIME.items()],
    *[
        Case(
            f"exit_{name}", code, "error ok" if n is None else "error" if n else "ok", err=err, exit_code=n
        )
        for name, (code, n, err) in EXITS.items()
    ],
    works("empty", "", r"\A\Z"),
    works("comment_only", "# nothing", r"\A\Z"),
    works("white_space", "  \n\t\n  ", r"\A\Z"),
    works("mark_and_line_ends", "\ufeffprint(1)\r\nprint(2)\r\n", "^1\n2$"),
    works("old_line_ends", "print(1)\rprint(2)", "^1\n2$"),
    works("carriage_return_in_string", "print(len('a\\r\\nb'), '''x\r\ny''' == 'x\\ny')", "4 True"),
    works("tabs", "if 1:\n\tprint('tab')", "^tab$"),
    works("form_feed", "\x0cprint(1)", "^1$"),
    works("semicolons", "x = 1; y = 2; print(x + y);", "^3$"),
    works("continued", "x = 1 + \\\n    2\nprint(x)", "^3$"),
    works("no_last_line_end", "print(1)", "^1$"),
    works("coding_line", "# -*- coding: latin-1 -*-\nprint('é')", "^é$"),
    works("shebang", "#!/usr/bin/env python3\nprint(1)", "^1$"),
    works("long_line", "x = [" + "1, " * 20_000 + "]\nprint(len(x))", "^20000$"),
    works("long_string", "x = '" + "a" * 100_000 + "'\nprint(len(x))", "^100000$"),
    works("many_lines", "x = 0\n" + "x += 1\n" * 5000 + "print(x)", "^5000$"),
    works("many_names", "\n".join(f"v{i} = {i}" for i in range(3000)) + "\nprint(v2999)", "^2999$"),
    works(
        "nested_functions",
        "def a():\n def b():\n  def c():\n   return 3\n  return c()\n return b()\nprint(a())",
        "^3$",
    ),
    works(
        "nested_data",
        "x = " + "[" * 80 + "7" + "]" * 80 + "\nwhile isinstance(x, list): x = x[0]\nprint(x)",
        "^7$",
    ),
    works("wide_characters", "print('👩‍👩‍👧', len('e\\u0301'), '\\N{SNOWMAN}')", "☃"),
    works("names_of_other_scripts", "变量 = 3\nΔx = 4\nprint(变量 + Δx)", "^7$"),
    works(
        "shadowed_builtins",
        "list = [1]\nsum = 3\nstr = 'a'\nprint = print\nprint(list, sum, str)",
        r"^\[1\] 3 a$",
    ),
    works("shadowed_modules", "import math\nmath = 3\nrandom = 4\nprint(math, random)", "3 4"),
    works("variable_named_like_result", "value = status = stdout = 1\nprint(value)", "^1$"),
    works(
        "deep_recursion_allowed",
        "import sys\nsys.setrecursionlimit(20_000)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(15_000))",
        "^15000$",
    ),
    works("recursion_caught", "def f(): f()\ntry: f()\nexcept RecursionError: print('deep')", "^deep$"),
    works("except_hides_nothing", "try: 1 / 0\nexcept: print('caught')", "^caught$"),
    Case("warning_in_source", "x = 4\nprint(x is 3)", out="False", err="SyntaxWarning"),
    works(
        "deprecated",
        "import datetime, warnings\nwarnings.simplefilter('error')\nprint(datetime.date(2020, 1, 1))",
        "2020",
    ),
    Case("lone_surrogate", "print('\ud800')", "error", err="UnicodeEncodeError|surrogates"),
    Case("lone_surrogate_in_comment", "# \ud800\nprint(1)", "ok error"),
    Case("last_value", "x = 12 * 31\nx", out=r"\A\Z", value="^372$"),
    Case("last_value_none", "print(1)", out="^1$", value=r"\A\Z"),
    Case("last_value_string", "'text'", value="^'text'$"),
    Case("last_value_array", "import numpy as np\nnp.arange(3)", value=r"^array\(\[0, 1, 2\]\)$"),
    Case(
        "last_value_expression",
        "from sympy import *\nx = symbols('x')\nexpand((x + 1)**2)",
        value=r"^x\*\*2 \+ 2\*x \+ 1$",
    ),
    Case(
        "last_value_frame",
        "import pandas as pd\npd.DataFrame({'a': [1]})",
        value="a",
        needs="pandas",
        tiers={"D": {"want": "ok error", "value": ""}},
        limits={"cpu_s": 6.0, "timeout_s": 9.0},
    ),
    Case("last_value_in_block", "if True:\n    5", value=r"\A\Z"),
    Case("last_value_semicolon", "5; 6", value="^6$"),
    Case("last_value_generator", "(i for i in [])", value="generator object"),
    Case("last_value_lambda", "lambda: 1", value="function <lambda>"),
    Case("last_value_after_error", "1 / 0\n5", "error", value=r"\A\Z"),
    Case(
        "value_while_thread_prints",
        "import threading\nthreading.Thread(target=print, args=('t',)).start()\n7",
        out="^t$",
        value="^7$",
    ),
    Case("forgotten_condition", "i = 0\nwhile i < 10: print(end='')", "timeout_cpu", limits=BUSY),
    Case("too_long", "#" * (300 << 10), "error", err="longer than 256 KB", tiers={"ABCD": {}}),
]
