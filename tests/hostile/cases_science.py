"""G: sympy, numpy, pandas, plots."""

from typing import Any

from .case import Case

NOT_PRELOADED: dict[str, Any] = {"D": {"want": "ok error", "out": ""}}  # files cannot be opened there
PLOT = """
import matplotlib.pyplot as plt
import numpy as np
x = np.linspace(0, 1, 10)
plt.plot(x, x**2)
plt.title('squares')
plt.show()
print(plt.get_backend().lower())
"""
PANDAS = """
import pandas as pd
d = pd.DataFrame({'a': [1, 2, 2], 'b': [3.0, 4.0, 5.0]})
print(d.groupby('a')['b'].mean().to_dict())
"""


def sym(name: str, code: str, out: str) -> Case:
    code = f"from sympy import *\nx, y, z, n = symbols('x y z n')\n{code}"
    return Case(f"sympy_{name}", code, out=out, needs="sympy")


def arr(name: str, code: str, out: str) -> Case:
    return Case(f"numpy_{name}", f"import numpy as np\n{code}", out=out, needs="numpy")


def prints(name: str, code: str, out: str, **more: Any) -> Case:
    return Case(name, code, out=out, **more)


CASES = [
    prints(
        "matplotlib",
        PLOT,
        "^agg$",
        needs="matplotlib",
        tiers={**NOT_PRELOADED, "B": {"want": "error", "out": "", "err": "writable cache"}},
        limits={"cpu_s": 6.0, "timeout_s": 9.0},
    ),
    prints(
        "pandas",
        PANDAS,
        r"\{1: 3\.0, 2: 4\.5\}",
        needs="pandas",
        tiers=NOT_PRELOADED,
        limits={"cpu_s": 6.0, "timeout_s": 9.0},
    ),
    sym(
        "solve",
        "print(solve(x**2 - 5*x + 6, x), solve([x + y - 3, x - y - 1], [x, y]))",
        r"\[2, 3\] \{x: 2, y: 1\}",
    ),
    sym(
        "integrate",
        "print(integrate(x**2 * exp(x), (x, 0, 1)), integrate(1 / (1 + x**2), (x, -oo, oo)))",
        "-2 \\+ E pi",
    ),
    sym("latex", "print(latex(Integral(sqrt(1 / x), x)))", r"\\int \\sqrt"),
    sym(
        "limit", "print(limit(sin(x) / x, x, 0), series(cos(x), x, 0, 4), diff(x**x, x))", r"1 1 - x\*\*2/2"
    ),
    sym(
        "matrices",
        "M = Matrix([[2, 1], [1, 2]])\nprint(M.eigenvals(), M.inv(), M.det())",
        r"\{3: 1, 1: 1\}|\{1: 1, 3: 1\}",
    ),
    sym(
        "numbers",
        "print(factorint(360), isprime(2**61 - 1), N(pi, 30), nsimplify(0.333333333333333), "
        "Rational(3, 7) + 1)",
        r"\{2: 3, 3: 2, 5: 1\} True 3\.14159265358979323846264338328",
    ),
    sym(
        "sums",
        "print(summation(1 / n**2, (n, 1, oo)), Sum(n, (n, 1, 10)).doit(), binomial(10, 3))",
        r"pi\*\*2/6 55 120",
    ),
    sym("lambdify", "print(lambdify(x, sin(x), 'numpy')(0.0), sympify('2*x + 1').subs(x, 3))", r"^0\.0 7$"),
    sym(
        "inequality",
        "print(solveset(x**2 < 4, x, S.Reals), simplify(sin(x)**2 + cos(x)**2))",
        r"Interval\.open\(-2, 2\) 1",
    ),
    sym("ode", "f = Function('f')\nprint(dsolve(f(x).diff(x) - f(x)))", r"C1\*exp\(x\)"),
    sym("pretty", "pprint(x**2 / 2)\ninit_printing()", "──"),
    arr(
        "linear_algebra",
        "a = np.array([[3, 1], [1, 2]])\nprint(np.linalg.solve(a, [9, 8]), "
        "np.linalg.eigvals(a).real.round(2), np.linalg.matrix_rank(a))",
        r"\[2\. 3\.\]",
    ),
    arr(
        "inverse",
        "np.random.seed(0)\na = np.random.rand(200, 200)\n"
        "print(np.allclose(a @ np.linalg.inv(a), np.eye(200)))",
        "True",
    ),
    arr(
        "statistics",
        "a = np.arange(10.0)\nprint(a.mean(), a.std().round(3), np.percentile(a, 50), "
        "np.histogram(a, 2)[0])",
        r"4\.5 2\.872 4\.5 \[5 5\]",
    ),
    arr(
        "polynomials",
        "print(np.roots([1, -5, 6]), np.polyfit([0, 1, 2], [1, 3, 5], 1).round(6))",
        r"\[3\. 2\.\] \[2\. 1\.\]",
    ),
    arr("fourier", "print(np.abs(np.fft.fft([1, 0, 0, 0])))", r"\[1\. 1\. 1\. 1\.\]"),
    arr(
        "generators",
        "r = np.random.default_rng(5)\nprint(r.integers(0, 10, 3).shape, r.normal() == r.normal())",
        r"\(3,\) False",
    ),
    Case(
        "numpy_warnings", "import numpy as np\nprint(np.array([1.0]) / 0)", out="inf", err="divide by zero"
    ),
    arr("strings", "print(np.array(['a', 'bb']).dtype, np.datetime64('2024-01-01') + 1)", "<U2 2024-01-02"),
]
