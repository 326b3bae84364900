"""Number theory: divisors, multiples, digits, primes."""

import bisect
import functools
import math

from torl.tasks.generators.base import Dice, Problem, kind

GCD = (
    "What is the greatest common divisor of {a} and {b}?",
    "Find the gcd of {a} and {b}.",
    "What is the largest number that divides both {a} and {b}?",
    "{name} has {a} {items} and {b} {things} for identical bags, none left over. How many bags at most?",
    "Compute the highest common factor of {a} and {b}.",
    "Two ropes of {a} cm and {b} cm are cut into equal pieces, as long as possible. How many cm is each?",
    "By what largest number can the fraction {a}/{b} be reduced?",
    "What is the biggest common factor of {a} and {b}?",
)


@kind
def gcd(dice: Dice) -> Problem:
    """The greatest common divisor of two numbers."""
    common = dice.number(150, 900)
    a, b = common * dice.number(20, 300), common * dice.number(20, 300)
    return Problem({"a": a, "b": b}, str(math.gcd(a, b)), GCD)


LCM = (
    "What is the least common multiple of {a} and {b}?",
    "Find the lcm of {a} and {b}.",
    "What is the smallest positive number that both {a} and {b} divide?",
    "One light blinks every {a} seconds, another every {b}. After how many seconds do they meet again?",
    "Compute the lowest common multiple of {a} and {b}.",
    "One bus leaves every {a} minutes, another every {b} minutes. After how many minutes do both leave?",
    "Which smallest positive number is a multiple of {a} and of {b}?",
    "{name} counts in steps of {a}, {other} in steps of {b}. Which is the first number that both say?",
)


@kind
def lcm(dice: Dice) -> Problem:
    """The least common multiple of two numbers."""
    common = dice.between(2, 9)
    a, b = common * dice.number(20, 400), common * dice.number(20, 400)
    return Problem({"a": a, "b": b}, str(math.lcm(a, b)), LCM)


MULTIPLES = (
    "How many multiples of {k} are there from {low} to {high}?",
    "How many numbers from {low} to {high} are divisible by {k}?",
    "Count the multiples of {k} between {low} and {high}, both included.",
    "{name} writes the numbers from {low} to {high}. How many of them can be divided by {k}?",
    "Tickets are numbered {low} to {high}. Each multiple of {k} wins. How many tickets win?",
    "Among the whole numbers {low} to {high}, how many have {k} as a divisor?",
    "How often does one say a multiple of {k} when counting from {low} to {high}?",
    "Houses have numbers {low} to {high}. How many numbers are multiples of {k}?",
)


@kind
def multiples(dice: Dice) -> Problem:
    """How many multiples of a number lie in an interval."""
    k, low = dice.between(3, 19), dice.number(200, 9000)
    high = low + k * dice.number(200, 9000) + dice.between(0, k - 1)
    count = high // k - (low - 1) // k
    return Problem({"k": k, "low": low, "high": high}, str(count), MULTIPLES)


DIGITS = (
    "What is the sum of the digits of {number}?",
    "Add up all digits of {number}.",
    "Find the digit sum of {number}.",
    "{name} adds the digits of {number}. What does {name} get?",
    "What total do the digits of {number} give?",
    "Compute the sum of all digits in {number}.",
    "How much is the cross sum of {number}?",
    "If you add every digit of {number}, what is the result?",
)


@kind
def digit_sum(dice: Dice) -> Problem:
    """The sum of the digits of a number, of a product, or of a power."""
    form = dice.pick(("number", "product", "power"))
    a = dice.number(10**6, 10**15) if form == "number" else dice.number(99, 9999)
    b = {"number": 1, "product": dice.number(99, 9999), "power": dice.number(12, 90)}[form]
    value = {"number": a, "product": a * b, "power": a**b}[form]
    text = {"number": f"{a}", "product": f"{a} * {b}", "power": f"{a}^{b}"}[form]
    digits = sum(int(digit) for digit in str(value))
    return Problem({"a": a, "b": b, "form": form}, str(digits), DIGITS, {"number": text})


DIVISORS = (
    "How many positive divisors does {n} have?",
    "How many whole numbers divide {n} exactly?",
    "Count the positive divisors of {n}.",
    "By how many positive numbers is {n} divisible?",
    "How many factors does {n} have, 1 and {n} included?",
    "{name} lists all divisors of {n}. How many are on the list?",
    "In how many ways can {n} {items} be put into equal {boxes}, counting one {box} and {n} {boxes}?",
    "Find the number of divisors of {n}.",
)
DIVISOR_SUM = (
    "What is the sum of all positive divisors of {n}?",
    "Add up all positive divisors of {n}.",
    "{name} adds all numbers that divide {n}, {n} included. What does {name} get?",
    "Find the sum of the factors of {n}, 1 and {n} included.",
)


@kind
def divisors(dice: Dice) -> Problem:
    """How many divisors a number has, or their sum."""
    n = dice.number(100, 5000) * dice.pick((6, 10, 12))
    form = dice.pick(("count", "sum"))
    found = {d for small in range(1, math.isqrt(n) + 1) if n % small == 0 for d in (small, n // small)}
    answer, phrases = (len(found), DIVISORS) if form == "count" else (sum(found), DIVISOR_SUM)
    return Problem({"n": n, "form": form}, str(answer), phrases)


PRIMES = {
    "below": (
        "How many prime numbers are less than {n}?",
        "Count the primes below {n}.",
        "How many primes are smaller than {n}?",
    ),
    "largest": (
        "What is the largest prime number below {n}?",
        "Find the biggest prime less than {n}.",
        "Which prime comes last before {n}?",
    ),
    "next": (
        "What is the smallest prime number greater than {n}?",
        "Find the first prime above {n}.",
        "Which prime follows next after {n}?",
    ),
    "nth": (
        "2 is prime number 1 and 3 is prime number 2. What is prime number {n}?",
        "The primes are listed in order: 2, 3, 5, ... Which one is at position {n}?",
        "{name} writes the first {n} primes in order. What is the last one?",
    ),
}


@kind
def primes(dice: Dice) -> Problem:
    """How many primes are below a number, the nearest prime to it, or the nth prime."""
    form = dice.pick(tuple(PRIMES))
    n = dice.number(200, 2500) if form == "nth" else dice.number(1500, 20000)
    return Problem({"n": n, "form": form}, str(_prime(form, n)), PRIMES[form])


def _prime(form: str, n: int) -> int:
    table = _primes()
    if form == "nth":
        return table[n - 1]
    if form == "next":
        return table[bisect.bisect_right(table, n)]
    below = bisect.bisect_left(table, n)
    return below if form == "below" else table[below - 1]


@functools.cache
def _primes(limit: int = 24000) -> list[int]:
    """The primes up to ``limit`` (there are 2668 below 24,000), by the sieve."""
    composite = bytearray(limit + 1)
    for p in range(2, math.isqrt(limit) + 1):
        if not composite[p]:
            composite[p * p :: p] = b"\1" * len(composite[p * p :: p])
    return [n for n in range(2, limit + 1) if not composite[n]]
