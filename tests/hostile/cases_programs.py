"""G: programs as models write them. They must simply work."""

from typing import Any

from .case import Case

QUADRATIC = """
import cmath

def solve_quadratic(a: float, b: float, c: float) -> tuple[complex, complex]:
    '''Roots of a*x**2 + b*x + c.'''
    d = cmath.sqrt(b * b - 4 * a * c)
    return (-b + d) / (2 * a), (-b - d) / (2 * a)

if __name__ == "__main__":
    roots = solve_quadratic(1, -5, 6)
    print([r.real for r in roots])
"""
SIEVE = """
def primes(n):
    sieve = bytearray([1]) * (n + 1)
    for i in range(2, int(n**0.5) + 1):
        if sieve[i]: sieve[i*i::i] = bytes(len(sieve[i*i::i]))
    return [i for i in range(2, n + 1) if sieve[i]]
print(len(primes(200_000)))
"""
DATACLASS = """
from dataclasses import asdict, dataclass, field
@dataclass(order=True, slots=True)
class P:
    x: int
    tags: list[str] = field(default_factory=list, compare=False)
print(sorted([P(2), P(1, ['a'])]), asdict(P(1)))
"""
PROTOCOL = """
from __future__ import annotations
from typing import Generic, NamedTuple, Protocol, TypeVar, get_type_hints
T = TypeVar('T')
class Box(Generic[T]):
    def get(self) -> T: ...
class N(NamedTuple):
    a: int
    b: str = 'x'
print(N(1), get_type_hints(N), Box[int])
"""
MATCH = """
def f(x):
    match x:
        case {'k': [a, *rest]}: return a, rest
        case int() | float() as n if n > 3: return 'big'
        case str(s): return s.upper()
        case _: return None
print(f({'k': [1, 2, 3]}), f(4.5), f('a'), f(None))
"""
ASYNC = """
import asyncio
async def worker(n, q):
    await asyncio.sleep(0.01)
    await q.put(n * n)
async def main():
    q = asyncio.Queue()
    async with asyncio.TaskGroup() as g:
        for n in range(5): g.create_task(worker(n, q))
    out = []
    while not q.empty(): out.append(await q.get())
    try:
        async with asyncio.timeout(0.02): await asyncio.sleep(5)
    except TimeoutError: out.append('t')
    return await asyncio.to_thread(sorted, map(str, out))
print(asyncio.run(main()))
"""
MONTE_CARLO = """
import random
random.seed(1)
inside = sum(random.random()**2 + random.random()**2 <= 1 for _ in range(50_000))
print(round(4 * inside / 50_000, 1))
"""
PICKLE = """
import copy, pickle
class P:
    def __init__(s, x): s.x = x
    def __reduce__(s): return P, (s.x,)
p = pickle.loads(pickle.dumps([P(1), P(2)]))
print([q.x for q in copy.deepcopy(p)], P.__module__, P.__qualname__)
"""
CONTEXT = """
from contextlib import ExitStack, contextmanager, suppress
@contextmanager
def c(n):
    print('in', n)
    try: yield n
    finally: print('out', n)
with ExitStack() as s, suppress(KeyError):
    for n in range(2): s.enter_context(c(n))
    raise KeyError
print('end')
"""


def prints(name: str, code: str, out: str, **more: Any) -> Case:
    return Case(name, code, out=out, **more)


CASES = [
    prints("quadratic", QUADRATIC, r"^\[3\.0, 2\.0\]$"),
    prints("sieve", SIEVE, "^17984$"),
    prints("monte_carlo", MONTE_CARLO, r"^3\.1$"),
    prints(
        "dataclass", DATACLASS, r"\[P\(x=1, tags=\['a'\]\), P\(x=2, tags=\[\]\)\] \{'x': 1, 'tags': \[\]\}"
    ),
    prints("typing", PROTOCOL, r"N\(a=1, b='x'\) .*'int'>.* __main__\.Box\[int\]"),
    prints("match", MATCH, r"\(1, \[2, 3\]\) big A None"),
    prints("asyncio", ASYNC, r"\['0', '1', '16', '4', '9', 't'\]"),
    prints(
        "asyncio_gather",
        "import asyncio\nasync def f(n): return n\n"
        "async def m(): return await asyncio.gather(*map(f, range(3)))\nprint(asyncio.run(m()))",
        r"\[0, 1, 2\]",
    ),
    prints(
        "threads",
        "import threading\nr = []\nt = [threading.Thread(target=r.append, args=(n,)) for n in "
        "range(9)]\n[x.start() for x in t]\n[x.join() for x in t]\nprint(sorted(r))",
        "8]",
    ),
    prints(
        "thread_queue",
        "import queue, threading\nq = queue.Queue()\n"
        "threading.Thread(target=lambda: [q.put(n) for n in range(3)]).start()\n"
        "print([q.get(timeout=2) for _ in range(3)])",
        r"\[0, 1, 2\]",
    ),
    prints(
        "thread_local",
        "import contextvars, threading\nv = contextvars.ContextVar('v', default=1)\n"
        "l = threading.local()\nl.x = 2\nprint(v.get(), l.x)",
        "1 2",
    ),
    prints("pickle", PICKLE, r"\[1, 2\] __main__ P"),
    prints(
        "inspect",
        "import inspect\ndef f(a, b=2):\n    return a  # note\n"
        "print(inspect.getsource(f), inspect.signature(f))",
        r"return a  # note(?s:.*)\(a, b=2\)",
    ),
    prints(
        "inspect_class",
        "import inspect\nclass A:\n    def m(s): return 1\nprint(inspect.getsource(A.m))",
        "def m",
    ),
    prints("contextlib", CONTEXT, "in 0\nin 1\nout 1\nout 0\nend"),
    prints("walrus", "if (n := len('abcd')) > 3: print(f'{n=} {n!r:>4}')", "n=4    4"),
    prints(
        "generators",
        "def g():\n    r = yield 1\n    yield from range(r)\nx = g()\nprint(next(x), x.send(2), list(x))",
        r"1 0 \[1\]",
    ),
    prints(
        "comprehensions",
        "print({k: v for k, v in zip('ab', (1, 2))}, {*'aa'}, [*range(3)], (lambda *a, **k: (a, "
        "k))(1, b=2))",
        r"\{'a': 1, 'b': 2\} \{'a'\}",
    ),
    prints(
        "closures",
        "def c():\n    n = 0\n    def i():\n        nonlocal n\n        n += 1\n        return n\n"
        "    return i\nf = c()\nprint(f(), f())",
        "1 2",
    ),
    prints(
        "decorators",
        "import functools\n@functools.lru_cache(None)\n"
        "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
        "print(fib(300), fib.cache_info().currsize)",
        "^222232244629420445529739893461909967",
    ),
    prints(
        "itertools",
        "from itertools import *\nprint(list(permutations('abc', 2))[:2], "
        "list(accumulate(range(4))), list(pairwise('abc')))",
        r"\[0, 1, 3, 6\]",
    ),
    prints(
        "collections",
        "from collections import *\nprint(Counter('aab').most_common(1), deque([1, 2], 1), "
        "defaultdict(int)['x'], namedtuple('P', 'a b')(1, 2))",
        r"P\(a=1, b=2\)",
    ),
    prints(
        "enum",
        "from enum import Enum, auto\nclass C(Enum):\n    R = auto()\nprint(C.R, C['R'], list(C))",
        "C.R C.R",
    ),
    prints(
        "abc",
        "from abc import ABC, abstractmethod\nclass A(ABC):\n    @abstractmethod\n    def f(s): ...\n"
        "try: A()\nexcept TypeError as e: print(e)",
        "abstract",
    ),
    prints(
        "metaclass",
        "class M(type):\n    def __call__(c, *a): return super().__call__(*a)\n"
        "class A(metaclass=M): pass\nprint(type(A()).__name__)",
        "^A$",
    ),
]
