"""Arithmetic in words: two numbers, chains, division, powers, percentages, averages."""

from fractions import Fraction

from torl.tasks.generators.base import Dice, Problem, exact, kind, listing, multiple_of

PLUS = (
    "What is {a} plus {b}?",
    "Compute {a} + {b}.",
    "Add {a} and {b}.",
    "Find the sum of {a} and {b}.",
    "{name} adds {a} and {b}. What does {name} get?",
    "Which number is {a} more than {b}?",
    "What is the total of {a} and {b}?",
    "Increase {a} by {b}. What is the result?",
)
MINUS = (
    "What is {a} minus {b}?",
    "Compute {a} - {b}.",
    "Subtract {b} from {a}.",
    "Find the difference between {a} and {b}.",
    "{name} takes {b} away from {a}. What is left?",
    "Which number is {b} less than {a}?",
    "How much larger is {a} than {b}?",
    "Decrease {a} by {b}. What is the result?",
)
TIMES = (
    "What is {a} times {b}?",
    "Compute {a} * {b}.",
    "Multiply {a} by {b}.",
    "Find the product of {a} and {b}.",
    "{name} multiplies {a} by {b}. What does {name} get?",
    "How much is {a} multiplied by {b}?",
    "What do you get when {b} is taken {a} times?",
    "Work out {a} x {b}.",
)


@kind
def arithmetic(dice: Dice) -> Problem:
    """Two numbers added, subtracted or multiplied."""
    a, b = dice.number(60, 90000), dice.number(60, 90000)
    op = dice.pick(("plus", "minus", "times", "times"))
    if op == "plus":
        return Problem({"a": a, "op": op, "b": b}, str(a + b), PLUS)
    if op == "times":
        return Problem({"a": a, "op": op, "b": b}, str(a * b), TIMES)
    a, b = max(a, b) + 7, min(a, b)
    return Problem({"a": a, "op": op, "b": b}, str(a - b), MINUS)


CHAIN = (
    "Compute {expression}.",
    "What is {expression}?",
    "Evaluate {expression}.",
    "Work out the value of {expression}.",
    "Start with {start}, {steps}. What is the result?",
    "{name} has the number {start} and has to {steps}. What is the result?",
    "Take {start}, {steps}. Which number do you get?",
    "A machine gets {start}, told to {steps}. What comes out?",
    "{name} writes down {start}. Now {steps}. What number is it now?",
    "Begin at {start} and {steps}. Where do you end?",
)
STEP_WORDS = {"plus": "add {}", "minus": "subtract {}", "times": "multiply by {}"}
STEP_SIGNS = {"plus": "+", "minus": "-", "times": "*"}


@kind
def chain(dice: Dice) -> Problem:
    """Three or more numbers, one operation after the other."""
    start = value = dice.number(60, 3000)
    expression, words = str(start), []
    steps: list[tuple[str, int]] = []
    for i in range(dice.steps(2, 4)):
        op = dice.pick(("plus", "minus") if i and steps[-1][0] == "times" else ("times", "plus", "times"))
        b = dice.number(20, 90) if op == "times" else dice.number(50, 2000)
        if op == "minus":
            b = min(b, value - 1)
        value = {"plus": value + b, "minus": value - b, "times": value * b}[op]
        bare = op != "times" or expression.isdigit()
        expression = f"{expression if bare else f'({expression})'} {STEP_SIGNS[op]} {b}"
        words.append(STEP_WORDS[op].format(b))
        steps.append((op, b))
    text = {"expression": expression, "steps": ", then ".join(words)}
    return Problem({"start": start, "steps": [list(step) for step in steps]}, str(value), CHAIN, text)


REMAINDER = (
    "What is the remainder when {a} is divided by {b}?",
    "Divide {a} by {b}. What is the remainder?",
    "{a} {items} are packed into {boxes} of {b}. How many {items} are left over?",
    "What is {a} modulo {b}?",
    "{name} puts {a} {items} into full rows of {b}. How many {items} remain?",
    "Find the rest of the division of {a} by {b}.",
    "{b} friends share {a} {items} equally. How many {items} are left over?",
)
QUOTIENT = (
    "How many times does {b} fit completely into {a}?",
    "What is the whole-number quotient of {a} divided by {b}?",
    "{a} {items} are packed into {boxes} of {b}. How many {boxes} are full?",
    "Divide {a} by {b} and drop the remainder. What is left?",
    "{name} makes rows of {b} {items} from {a} {items}. How many full rows are there?",
    "{b} friends share {a} {items} equally. How many whole {items} does each get?",
    "What is {a} divided by {b}, rounded down?",
)


@kind
def division(dice: Dice) -> Problem:
    """The quotient or the remainder of a division of whole numbers."""
    b = dice.number(30, 900)
    a = b * dice.number(100, 9000) + dice.between(1, b - 1)
    form = dice.pick(("quotient", "remainder"))
    answer, phrases = (a // b, QUOTIENT) if form == "quotient" else (a % b, REMAINDER)
    return Problem({"a": a, "b": b, "form": form}, str(answer), phrases)


POWER = (
    "What is {a} to the power of {b}?",
    "Compute {a}^{b}.",
    "Raise {a} to the power {b}.",
    "What is {a} multiplied by itself so that it appears {b} times as a factor?",
    "Find the value of {a}^{b}.",
    "{name} raises {a} to the power {b}. What does {name} get?",
    "Calculate the power with base {a} and exponent {b}.",
    "Evaluate {a} to the {ordinal} power.",
    "How much is {a} raised to {b}?",
    "What number is {a}^{b}?",
)


@kind
def power(dice: Dice) -> Problem:
    """A whole number raised to a small power."""
    a, b = dice.number(99, 999), dice.between(2, dice.scale(4, 9))
    return Problem({"a": a, "b": b}, str(a**b), POWER, {"ordinal": _ordinal(b)})


def _ordinal(n: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(n, f"{n}th")


MODULAR_POWER = (
    "What is the remainder when {a}^{b} is divided by {m}?",
    "Find {a}^{b} modulo {m}.",
    "Compute {a} to the power {b}, modulo {m}.",
    "{name} divides {a}^{b} by {m}. What remainder is left?",
    "Raise {a} to the power {b} and divide by {m}. What is the remainder?",
    "What rest does {a}^{b} leave when divided by {m}?",
    "Calculate {a} to the power of {b} mod {m}.",
    "Which number from 0 to {last} is congruent to {a}^{b} modulo {m}?",
)


@kind
def modular_power(dice: Dice) -> Problem:
    """The remainder of a power."""
    a, b, m = dice.number(30, 900), dice.number(12, 300), dice.number(1000, 10000)
    return Problem({"a": a, "b": b, "m": m}, str(pow(a, b, m)), MODULAR_POWER, {"last": str(m - 1)})


PERCENT_OF = (
    "What is {p}% of {n}?",
    "{name} has {n} {items} and sells {p}% of them. How many {items} are sold?",
    "Find {p} percent of {n}.",
    "Of {n} tickets, {p}% are used. How many tickets are used?",
    "A town has {n} people. {p}% of them vote. How many people vote?",
    "Compute {p} percent of {n}.",
)
PERCENT_OFF = (
    "A price of ${n} is lowered by {p}%. What is the new price in dollars?",
    "What is {n} decreased by {p}%?",
    "A sofa costs ${n}. There is a discount of {p}%. How many dollars does it cost now?",
    "{name} has ${n} and spends {p}% of it. How many dollars are left?",
)
PERCENT_UP = (
    "What is {n} increased by {p}%?",
    "A rent of ${n} rises by {p}%. What is the new rent in dollars?",
    "{name} earns ${n} a month and gets {p}% more. How many dollars is that now?",
    "A town of {n} people grows by {p}%. How many people live there now?",
)


@kind
def percentage(dice: Dice) -> Problem:
    """A percentage of a number, or a number changed by a percentage."""
    p = dice.between(1, 19) * 5 if dice.likely(1 - dice.difficulty) else dice.between(1, 99)
    # A multiple of 100 / gcd(p, 100) makes the answer whole: people and things have no parts.
    n = multiple_of(Fraction(p, 100).denominator, dice.number(600, 60000))
    form = dice.pick(("of", "off", "up"))
    share = Fraction(p * n, 100)
    value = {"of": share, "off": n - share, "up": n + share}[form]
    phrases = {"of": PERCENT_OF, "off": PERCENT_OFF, "up": PERCENT_UP}[form]
    return Problem({"p": p, "n": n, "form": form}, exact(value), phrases)


AVERAGE = (
    "What is the average of {numbers}?",
    "Find the mean of {numbers}.",
    "{name} scored {numbers} points. What is the average score?",
    "The {boxes} hold {numbers} {items}. How many {items} is that on average?",
    "On {count} days {name} sold {numbers} {items}. What is the mean number a day?",
    "Compute the arithmetic mean of {numbers}.",
    "{name} walked {numbers} steps on {count} days. How many steps a day is that on average?",
    "{count} packages weigh {numbers} grams. What is their average weight in grams?",
)


@kind
def average(dice: Dice) -> Problem:
    """The mean of some numbers; a whole number, or a half when it is hard."""
    numbers = [dice.number(200, 9000) for _ in range(dice.steps(3, 6))]
    halves = 2 if dice.likely(dice.difficulty / 2) and len(numbers) % 2 == 0 else 1
    numbers[-1] += -sum(numbers) * halves % len(numbers) // halves
    mean = Fraction(sum(numbers), len(numbers))
    text = {"numbers": listing(numbers), "count": str(len(numbers))}
    return Problem({"numbers": numbers}, exact(mean), AVERAGE, text)
