"""Units, durations, rectangles, speed."""

from fractions import Fraction

from torl.tasks.generators.base import Dice, Problem, exact, kind

FACTORS = (
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("hours", "seconds", 3600),
    ("days", "hours", 24),
    ("days", "minutes", 1440),
    ("weeks", "days", 7),
    ("weeks", "hours", 168),
    ("years", "months", 12),
    ("kilometers", "meters", 1000),
    ("meters", "centimeters", 100),
    ("kilograms", "grams", 1000),
    ("liters", "milliliters", 1000),
    ("feet", "inches", 12),
    ("yards", "inches", 36),
    ("miles", "feet", 5280),
    ("pounds", "ounces", 16),
    ("gallons", "cups", 16),
    ("dozen eggs", "eggs", 12),
)
CONVERT = (
    "How many {small} are {a} {large}?",
    "Convert {a} {large} to {small}.",
    "{name} needs {a} {large}. How many {small} is that?",
    "How many {small} are there in {a} {large}?",
    "Express {a} {large} in {small}.",
    "A label says {a} {large}. What is that in {small}?",
    "Write {a} {large} as {small}.",
    "{a} {large} are the same as how many {small}?",
)
CONVERT_SUM = (
    "How many {small} are {a} {large} and {b} {small}?",
    "Convert {a} {large} and {b} {small} to {small}.",
    "{name} notes {a} {large} and {b} {small}. How many {small} is that in all?",
    "{a} {large} plus {b} {small}: how many {small} in total?",
    "{name} counts {a} {large}, {other} counts {b} {small}. How many {small} is that together?",
    "From {a} {large} and {b} more {small}, how many {small} does one get?",
)
CONVERT_BACK = (
    "How many {large} are {total} {small}?",
    "Convert {total} {small} to {large}.",
    "{name} notes {total} {small}. How many {large} is that?",
    "Express {total} {small} in {large}.",
    "{total} {small} are the same as how many {large}?",
)


@kind
def units(dice: Dice) -> Problem:
    """A quantity in another unit: time, length, weight, volume, dozens."""
    large, small, factor = dice.pick(FACTORS)
    a, b = dice.number(40, 3000), dice.between(2, max(9, factor - 1))
    form = dice.pick(("plain", "sum", "back"))
    value, phrases = {
        "plain": (a * factor, CONVERT),
        "sum": (a * factor + b, CONVERT_SUM),
        "back": (a, CONVERT_BACK),
    }[form]
    params = {"a": a, "b": b if form == "sum" else 0, "large": large, "small": small, "form": form}
    return Problem(params, str(value), phrases, {"total": str(a * factor)})


DURATION = (
    "How many {unit} are {time}?",
    "Convert {time} to {unit}.",
    "A project lasts {time}. How many {unit} is that?",
    "{name} travels for {time}. How long is that in {unit}?",
    "A machine runs for {time}. For how many {unit} does it run?",
    "{name} is away for {time}. What is that in {unit}?",
    "A battery lasts {time}. How many {unit} does it last?",
    "Express {time} in {unit}.",
    "The download takes {time}. How many {unit} does it take?",
)


@kind
def duration(dice: Dice) -> Problem:
    """A time of two or three units in the smallest of them."""
    scale = [("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1)]
    length = dice.steps(2, 3)
    first = dice.between(0, len(scale) - length)
    parts = scale[first : first + length]
    amounts = [dice.number(20, 400)] + [dice.between(2, 23 if u == "hours" else 59) for u, _ in parts[1:]]
    unit, size = parts[-1]
    seconds = sum(n * each for n, (_, each) in zip(amounts, parts, strict=True))
    names = [f"{n} {u}" for n, (u, _) in zip(amounts, parts, strict=True)]
    text = {"time": ", ".join(names[:-1]) + " and " + names[-1], "unit": unit}
    return Problem({"amounts": amounts, "largest": parts[0][0]}, str(seconds // size), DURATION, text)


AREA = (
    "A rectangle is {a} cm long and {b} cm wide. What is its area in square cm?",
    "A garden measures {a} m by {b} m. How many square meters is it?",
    "What is the area of a rectangle with sides {a} and {b}?",
    "{name} paints a wall {a} feet long and {b} feet high. How many square feet is that?",
    "A hall is {a} m long and {b} m wide. How many square meters of carpet does it need?",
    "A floor has {a} rows of {b} square tiles. How many tiles are there?",
)
PERIMETER = (
    "A rectangle is {a} cm long and {b} cm wide. What is its perimeter in cm?",
    "{name} puts a fence around a garden of {a} m by {b} m. How many meters of fence is that?",
    "What is the perimeter of a rectangle with sides {a} and {b}?",
    "{name} runs once around a field of {a} m by {b} m. How many meters is that?",
    "How many cm of tape go around the edge of a table {a} cm long and {b} cm wide?",
)
SIDE = (
    "A rectangle has an area of {area} square cm and is {b} cm wide. How many cm long is it?",
    "A field of {area} square meters is {b} m wide. How long is it in meters?",
    "{area} tiles are laid in {b} equal rows. How many tiles are in a row?",
)


@kind
def rectangle(dice: Dice) -> Problem:
    """The area, the perimeter or a side of a rectangle."""
    a, b = dice.number(60, 5000), dice.number(60, 5000)
    form = dice.pick(("area", "area", "perimeter", "side"))
    value, phrases = {
        "area": (a * b, AREA),
        "perimeter": (2 * (a + b), PERIMETER),
        "side": (a, SIDE),
    }[form]
    return Problem({"a": a, "b": b, "form": form}, str(value), phrases, {"area": str(a * b)})


DISTANCE = (
    "A train goes {v} km per hour for {t} hours. How many km does it go?",
    "{name} drives at {v} km/h for {t} hours. What distance is that in km?",
    "A plane flies {t} hours at {v} miles per hour. How many miles does it fly?",
    "A ship makes {v} km in one hour. How many km does it make in {t} hours?",
    "At {v} km per hour, how far does a truck come in {t} hours?",
)
TIME = (
    "A train goes {v} km per hour. How many hours does it need for {d} km?",
    "{name} drives {d} km at {v} km/h. How many hours does that take?",
    "At {v} miles per hour, how many hours does a flight of {d} miles last?",
    "A ship makes {v} km in one hour. After how many hours has it made {d} km?",
)
SPEED = (
    "A train goes {d} km in {t} hours. What is its speed in km per hour?",
    "{name} drives {d} km in {t} hours. How many km is that per hour?",
    "How fast in miles per hour is a plane that flies {d} miles in {t} hours?",
    "A ship needs {t} hours for {d} km. How many km does it make in an hour?",
)


@kind
def speed(dice: Dice) -> Problem:
    """Speed, time or distance from the other two; half hours when it is hard."""
    v, hours = 2 * dice.number(60, 600), dice.number(30, 400)
    t = hours + (Fraction(1, 2) if dice.likely(dice.difficulty / 2) else 0)
    form = dice.pick(("distance", "time", "speed"))
    value, phrases = {"distance": (v * t, DISTANCE), "time": (t, TIME), "speed": (v, SPEED)}[form]
    params = {"v": v, "t": exact(t), "form": form}
    return Problem(params, exact(value), phrases, {"d": exact(v * t)})
