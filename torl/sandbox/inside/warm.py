"""What is in memory before the first child is forked: a child pays only for what it adds."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings

USUAL = """
abc ast asyncio atexit base64 bisect builtins calendar cmath codecs collections contextlib copy csv ctypes
dataclasses datetime decimal difflib enum fractions functools gc heapq inspect io itertools json linecache
locale logging math numbers operator os pickle pprint queue random re resource secrets signal socket
statistics string struct subprocess sys tempfile textwrap threading time tokenize traceback types typing
unicodedata warnings weakref zoneinfo
""".split()

NEVER = """
__main__ antigravity ensurepip idlelib lib2to3 this tkinter turtle turtledemo venv crypt msilib nis
ossaudiodev spwd test _winapi msvcrt nt winreg winsound
""".split()
NOT_LIBRARY = (
    ".this",
    ".test",
    ".tests",
    ".test_",
    ".benchmarks",
    "._tests",
    ".testing",
    "f2py",
    "distutils",
    "__main__",
)

# First uses build tables and fill caches; done once here, they are shared by all children.
SYMPY = """
from sympy import *
x, y, z = symbols("x y z"); n = symbols("n", integer=True)
solve(x**2 - 5*x + 6, x); solve([x + y - 3, x - y - 1], [x, y]); simplify(sin(x)**2 + cos(x)**2)
expand((x + y)**5); factor(x**3 - 1); diff(sin(x)*exp(x), x); integrate(x**2, (x, 0, 1))
limit(sin(x)/x, x, 0); series(exp(x), x, 0, 4); Matrix([[1, 2], [3, 4]]).det()
Matrix([[1, 2], [3, 4]]).eigenvals(); N(pi, 30); Rational(3, 7); factorint(360); isprime(97)
gcd(12, 18); binomial(10, 3); summation(n, (n, 1, 10)); nsimplify(0.25); str(x/2 + sqrt(2))
latex(x/2); lambdify(x, x**2)(3); solveset(x**2 - 2, x); Poly(x**2 - 1, x).all_roots()
nroots(x**3 - x - 1); sqrt(8); floor(Rational(7, 2)); Mod(7, 3); repr(x); Sum(n, (n, 1, 5)).doit()
"""
NUMPY = """
import numpy, numpy.random, numpy.linalg, numpy.fft, numpy.polynomial
numpy.linalg.solve(numpy.eye(3), numpy.ones(3)); str(numpy.arange(5)); numpy.random.seed(0)
numpy.linalg.inv(numpy.eye(40))
"""
SCIPY = "import scipy, scipy.optimize, scipy.special, scipy.integrate, scipy.linalg, scipy.stats"
FIRST_USES = {"numpy": NUMPY, "scipy": SCIPY, "sympy": SYMPY}


def preload(names: list[str]) -> dict[str, str]:
    """Imports and warms the packages that are installed; returns their versions."""
    for name in USUAL:
        importlib.import_module(name)
    versions = {}
    for name in names:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != name:
                raise
            continue  # not installed: the code gets the plain error
        exec(FIRST_USES.get(name, ""), {})
        versions[name] = str(getattr(module, "__version__", ""))
    return versions


def preload_everything(names: list[str]) -> None:
    """Every module of the standard library and of the packages: for children that may open no file.

    Not what those import if it happens to be installed: that could be all of a large environment.
    """
    known = {name.partition(".")[0] for name in sys.modules}
    only = _Only(known | sys.stdlib_module_names)
    sys.meta_path.insert(0, only)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(sys.stdlib_module_names):
            if name not in NEVER and not name.startswith("_"):
                _try_import(name)
        for root in [*names, *sorted(sys.stdlib_module_names - set(NEVER))]:
            package = sys.modules.get(root)
            for found in pkgutil.walk_packages(
                getattr(package, "__path__", []), f"{root}.", onerror=lambda _: None
            ):
                if not any(part in found.name for part in NOT_LIBRARY):
                    _try_import(found.name)
    sys.meta_path.remove(only)


class _Only:
    """Lets no package be imported but these."""

    def __init__(self, packages: set[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if name.partition(".")[0] not in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _try_import(name: str) -> None:
    try:
        importlib.import_module(name)
    except BaseException:  # modules of other systems, optional dependencies, sys.exit at import
        return
