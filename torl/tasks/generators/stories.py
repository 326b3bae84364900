"""Word problems of two and three steps: groups, sharing, comparing, ages."""

from torl.tasks.generators.base import Dice, Problem, kind

LESS = (
    "{name} has {a} {boxes} with {b} {items} each and gives away {c}. How many {items} are left?",
    "A theater has {a} rows of {b} seats. {c} seats are taken. How many seats are free?",
    "{name} buys {a} {boxes} of {b} {items}. {c} {items} are broken. How many are good?",
    "A farmer plants {a} rows of {b} trees. A storm fells {c} trees. How many still stand?",
    "There are {a} {boxes} of {b} {items}. {name} takes {c} {items} out. How many stay?",
    "A baker fills {a} trays with {b} rolls each and sells {c} rolls. How many rolls are left?",
    "{a} buses with {b} seats each stand ready. {c} seats are reserved. How many seats are not?",
    "A library has {a} shelves with {b} books each. {c} books are lent. How many are there now?",
)
MORE = (
    "{name} has {a} {boxes} with {b} {items} each and finds {c} more. How many {items} is that?",
    "A hall has {a} rows of {b} chairs and {c} chairs at the wall. How many chairs are there?",
    "{name} fills {a} {boxes} with {b} {items} each, and {c} {items} do not fit. How many are there?",
    "A book has {a} chapters of {b} pages and an appendix of {c} pages. How many pages is that?",
    "{name} reads {b} pages a day for {a} days, then {c} more. How many pages are read?",
    "There are {a} {boxes} of {b} {items} and {c} loose {items}. How many {items} are there?",
    "A town has {a} streets with {b} houses each and {c} farms. How many buildings is that?",
    "{a} teams of {b} players and {c} helpers come to a meeting. How many people come?",
)


@kind
def groups(dice: Dice) -> Problem:
    """Equal groups, and some more or some less: two steps."""
    a, b = dice.number(40, 900), dice.number(40, 900)
    form = dice.pick(("less", "more"))
    c = min(dice.number(60, 5000), a * b - 1)
    value, phrases = (a * b - c, LESS) if form == "less" else (a * b + c, MORE)
    return Problem({"a": a, "b": b, "c": c, "form": form}, str(value), phrases)


THREE_STEPS = (
    "{name} has {a} {boxes} of {b} {items}, gets {c} more and sells {d}. How many {items} are left?",
    "{a} cars with {b} people each arrive, {c} people walk in, {d} leave. How many people are there?",
    "A shop gets {a} {boxes} of {b} {items}. It had {c} and sells {d}. How many {items} has it now?",
    "{name} picks {b} {items} a day for {a} days, buys {c} and eats {d}. How many are left?",
    "A school has {a} classes of {b} pupils and {c} others. {d} are ill. How many are there today?",
    "A train has {a} cars with {b} seats. {c} seats are added, {d} are taken. How many are free?",
    "A printer makes {b} pages a minute for {a} minutes, then {c} more; {d} are bad. How many are good?",
    "{name} ships {a} {boxes} of {b} {items} and {c} loose ones. {d} are lost. How many arrive?",
)


@kind
def three_steps(dice: Dice) -> Problem:
    """Equal groups, some more, then some less: three steps."""
    a, b, c = dice.number(30, 900), dice.number(30, 900), dice.number(60, 5000)
    d = min(dice.number(60, 5000), a * b + c - 1)
    return Problem({"a": a, "b": b, "c": c, "d": d}, str(a * b + c - d), THREE_STEPS)


SHARE = (
    "{name} has {a} {items} and {b} {things} and shares all equally among {k} friends. "
    "How many things does each get?",
    "{a} red and {b} blue beads go equally on {k} strings. How many beads are on a string?",
    "{a} girls and {b} boys form {k} equal teams. How many children are in a team?",
    "{name} earns ${a}, {other} ${b}. They give it all to {k} clubs equally. How many dollars each?",
    "A farm packs {a} brown and {b} white eggs equally in {k} {boxes}. How many eggs are in a {box}?",
    "{a} old and {b} new books fill {k} shelves equally. How many books are on a shelf?",
    "{a} liters and then {b} liters of water fill {k} equal tanks. How many liters are in a tank?",
    "{name} splits {a} + {b} {items} into {k} equal piles. How many {items} are in a pile?",
)


@kind
def share(dice: Dice) -> Problem:
    """Two amounts together, shared equally."""
    k, each = dice.number(20, 200), dice.number(200, 4000)
    a = dice.between(k * each // 5, 4 * k * each // 5)
    return Problem({"a": a, "b": k * each - a, "k": k}, str(each), SHARE)


TOGETHER = (
    "{name} has {a} {items} and {other} has {k} times as many. How many {items} do they have together?",
    "One {box} holds {a} {items}, another {k} times as many. How many {items} do both hold?",
    "A town has {a} people, the next town {k} times as many. How many people live in both?",
    "{name} ran {a} meters and {other} ran {k} times as far. How many meters did they run in all?",
    "A pen factory made {a} pens in May and {k} times as many in June. How many pens in both months?",
)
APART = (
    "{name} has {a} {items} and {other} has {k} times as many. How many more does {other} have?",
    "A small tank holds {a} liters, a big one {k} times as much. What is the difference in liters?",
    "{name} walked {a} steps, {other} {k} times as many. How many more steps did {other} walk?",
    "A bike costs ${a} and a car {k} times as much. How many dollars more does the car cost?",
    "One book has {a} words, another {k} times as many. How many words more is that?",
)
PLUS_MORE = (
    "{name} has {a} {items}. {other} has {k} times as many and {c} more. How many does {other} have?",
    "A hut cost ${a}. A house cost {k} times as much plus ${c}. What did the house cost in dollars?",
    "Last year {a} people came; this year {k} times as many and {c} more. How many came this year?",
    "{name} sold {a} {items}, and {other} sold {c} more than {k} times that. How many did {other} sell?",
)


@kind
def compare(dice: Dice) -> Problem:
    """One amount is several times another: together, apart, or with some more."""
    a, k = dice.number(200, 9000), dice.between(3, dice.scale(19, 90))
    form = dice.pick(("together", "apart", "more"))
    c = dice.number(60, 3000) if form == "more" else 0
    value = {"together": a * (k + 1), "apart": a * (k - 1), "more": a * k + c}[form]
    phrases = {"together": TOGETHER, "apart": APART, "more": PLUS_MORE}[form]
    return Problem({"a": a, "k": k, "c": c, "form": form}, str(value), phrases)


AGES = (
    "{name} is {a} years old. A tower is {k} times as old. How old will the tower be in {y} years?",
    "A tree is {a} years old and a castle {k} times as old. How old is the castle in {y} years?",
    "A wall is {k} times as old as {name}, who is {a}. What is the age of the wall after {y} years?",
    "A bridge is {a} years old. A temple is {k} times as old. In {y} years, how old is the temple?",
    "{name} is {a}. The village is {k} times that age. How old is the village {y} years from now?",
)
AGES_AGO = (
    "{name} is {a} years old. A tower is {k} times as old. How old was the tower {y} years ago?",
    "A tree is {a} years old and a castle {k} times as old. How old was the castle {y} years ago?",
    "A wall is {k} times as old as {name}, who is {a}. What age had the wall {y} years ago?",
    "A bridge is {a} years old, a temple {k} times as old. How old was the temple {y} years back?",
)
AGES_SUM = (
    "{name} is {a} years old and {other} is {y} years older. What is the sum of their ages in {k} years?",
    "{other} is {y} years older than {name}, who is {a}. How old are both together in {k} years?",
    "{name} is {a}, and {other} {y} years older. What do their ages add up to after {k} years?",
)


@kind
def ages(dice: Dice) -> Problem:
    """The age of something old in the past or future, or the sum of two ages."""
    a, k, y = dice.between(12, 79), dice.number(19, 99), dice.number(19, 99)
    form = dice.pick(("in", "ago", "in", "ago", "sum"))
    y = min(y, a * k - 1)
    value = {"in": a * k + y, "ago": a * k - y, "sum": 2 * (a + k) + y}[form]
    phrases = {"in": AGES, "ago": AGES_AGO, "sum": AGES_SUM}[form]
    return Problem({"a": a, "k": k, "y": y, "form": form}, str(value), phrases)
