"""Sums over ranges, and counting arrangements and choices."""

import math

from torl.tasks.generators.base import Dice, Problem, kind

RANGE = (
    "What is the sum of {which} from {low} to {high}?",
    "Add up {which} from {low} to {high}.",
    "Find the sum of {which} between {low} and {high}, both ends included.",
    "{name} adds {which} from {low} to {high}. What does {name} get?",
    "Compute the total of {which} from {low} up to {high}.",
    "What do you get when you add {which} from {low} to {high}?",
    "On a list are {which} from {low} to {high}. What is their sum?",
    "How much are {which} from {low} to {high} together?",
)


@kind
def range_sum(dice: Dice) -> Problem:
    """The sum of all, the even, or the odd numbers, or of the multiples of a number, in a range."""
    step = dice.pick((1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9))
    odd = step == 2 and dice.likely(0.5)
    low = 1 if step == 1 or odd else step
    count = dice.number(100, 9000)
    high = low + step * (count - 1)
    which = {1: "all whole numbers", 2: "all even numbers"}.get(step, f"all multiples of {step}")
    which = "all odd numbers" if odd else which
    params = {"low": low, "high": high, "step": step}
    return Problem(params, str(count * (low + high) // 2), RANGE, {"which": which})


POWERS = (
    "What is the sum of the {powers} of the whole numbers from {low} to {high}?",
    "Add up the {powers} of all numbers from {low} to {high}.",
    "Find the sum of all {powers} from {low}^{p} to {high}^{p}.",
    "{name} adds the {powers} of {low}, {next} and so on up to {high}. What does {name} get?",
    "Compute {low}^{p} + {next}^{p} + ... + {high}^{p}.",
    "What is {low}^{p} + {next}^{p} + ... + {high}^{p}?",
    "How much are the {powers} of the numbers {low} to {high} together?",
    "For each whole number from {low} to {high} take its {power}. What is the total?",
)


@kind
def square_sum(dice: Dice) -> Problem:
    """The sum of the squares, or cubes, of the numbers in a range."""
    p = 3 if dice.likely(dice.difficulty / 2) else 2
    low = dice.between(1, 20)
    high = low + dice.number(30, 1500)
    total = _power_sum(high, p) - _power_sum(low - 1, p)
    word = {2: "square", 3: "cube"}[p]
    text = {"next": str(low + 1), "power": word, "powers": word + "s"}
    return Problem({"low": low, "high": high, "p": p}, str(total), POWERS, text)


def _power_sum(n: int, p: int) -> int:
    """1^p + ... + n^p for p = 2 or 3, in closed form."""
    return n * (n + 1) * (2 * n + 1) // 6 if p == 2 else (n * (n + 1) // 2) ** 2


FACTORIAL = (
    "What is {n} factorial?",
    "Compute {n}!.",
    "In how many orders can {n} different {items} be placed in a row?",
    "In how many ways can {n} people stand in a line?",
    "{name} reads {n} different books one after the other. How many orders are possible?",
    "What is the product of all whole numbers from 1 to {n}?",
)
ARRANGE = (
    "In how many ways can {k} of {n} different {items} be placed in a row?",
    "{n} runners race. In how many ways can the first {k} places be taken?",
    "How many ordered selections of {k} from {n} people are there?",
    "{name} has {n} different {items} and puts {k} of them in order. How many ways are there?",
    "A club with {n} members fills {k} different posts, each by another member. How many ways are there?",
    "{k} guests choose seats from {n} empty seats. In how many ways can they sit?",
    "How many permutations of {n} things taken {k} at a time are there?",
    "A code shows {k} different symbols out of {n}, order counts. How many codes are there?",
    "{n} songs are known. How many playlists of {k} different songs in order are there?",
    "A flag has {k} stripes of different colors from {n} colors. How many flags are there?",
)


@kind
def factorial(dice: Dice) -> Problem:
    """In how many orders things can stand, all of them or some."""
    if dice.likely(0.2):
        n = dice.between(6, dice.scale(12, 25))
        return Problem({"n": n, "k": n}, str(math.factorial(n)), FACTORIAL)
    n, k = dice.number(99, 250), dice.between(2, dice.scale(4, 7))
    return Problem({"n": n, "k": k}, str(math.perm(n, k)), ARRANGE)


CHOOSE = (
    "In how many ways can {k} of {n} {items} be chosen?",
    "How many groups of {k} can be formed from {n} people?",
    "What is {n} choose {k}?",
    "{name} picks {k} out of {n} different {items}. How many choices are there?",
    "A team of {k} is drawn from {n} players. How many teams are possible?",
    "How many different subsets of {k} elements does a set of {n} elements have?",
    "From {n} books {name} takes {k} on a trip. How many choices are there?",
    "A committee of {k} is elected from {n} members. How many committees are possible?",
    "A quiz draws {k} of {n} questions, in any order. How many draws are there?",
    "Compute the binomial coefficient of {n} over {k}.",
)


@kind
def choose(dice: Dice) -> Problem:
    """In how many ways some things can be chosen, in any order."""
    n, k = dice.number(99, 300), dice.between(2, dice.scale(4, 8))
    return Problem({"n": n, "k": k}, str(math.comb(n, k)), CHOOSE)
