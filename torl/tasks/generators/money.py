"""Money: totals, change, savings. Amounts are computed in cents."""

from fractions import Fraction

from torl.tasks.generators.base import Dice, Problem, dollars, exact, kind


def _price(dice: Dice, easy: int, hard: int) -> int:
    """A price in cents; whole dollars unless it is hard."""
    whole = 100 * dice.number(easy, hard)
    return whole + (5 * dice.between(1, 19) if dice.likely(dice.difficulty - 0.4) else 0)


def _in_dollars(cents: int) -> str:
    return exact(Fraction(cents, 100))


TOTAL = (
    "One ticket costs {price}. How many dollars do {n} tickets cost?",
    "{name} buys {n} chairs at {price} each. How many dollars is that?",
    "A shop sells {n} lamps for {price} each. How many dollars does it take in?",
    "{n} shirts cost {price} each. What is the total price in dollars?",
    "{name} earns {price} an hour and works {n} hours. How many dollars is that?",
    "A school orders {n} books at {price} each. What does it pay in dollars?",
    "The rent is {price} a day. What is the rent for {n} days in dollars?",
    "{n} guests pay {price} each. How many dollars do they pay together?",
    "What is the price in dollars of {n} {items} at {price} each?",
)


@kind
def price(dice: Dice) -> Problem:
    """The price of several equal things."""
    each, n = _price(dice, 40, 900), dice.number(60, 2000)
    return Problem({"cents": each, "n": n}, _in_dollars(n * each), TOTAL, {"price": dollars(each)})


TOTAL_OF_TWO = (
    "{name} buys {n} pens at {price} and {m} books at {other_price} each. How many dollars is that?",
    "{n} adults pay {price} each and {m} children {other_price} each. How many dollars is that?",
    "A school orders {n} desks at {price} and {m} chairs at {other_price}. What is the total in dollars?",
    "{n} small {boxes} cost {price} each, {m} large ones {other_price} each. What do all cost in dollars?",
    "{name} sells {n} {items} at {price} and {m} {things} at {other_price}. How many dollars is that?",
    "A farm sells {n} melons for {price} each and {m} hams for {other_price} each. How many dollars?",
    "{name} works {n} hours at {price} and {m} hours at {other_price}. How many dollars is that?",
    "A hotel has {n} guests at {price} and {m} at {other_price} a night. How many dollars a night?",
)


@kind
def basket(dice: Dice) -> Problem:
    """The total price of two sorts of things."""
    one, two = _price(dice, 20, 300), _price(dice, 20, 300)
    n, m = dice.number(30, 800), dice.number(30, 800)
    text = {"price": dollars(one), "other_price": dollars(two)}
    params = {"n": n, "cents": one, "m": m, "other_cents": two}
    return Problem(params, _in_dollars(n * one + m * two), TOTAL_OF_TWO, text)


CHANGE = (
    "{name} buys {n} {items} at {price} each and pays with {paid}. How many dollars come back?",
    "{n} tickets cost {price} each. {name} pays with {paid}. How many dollars of change is that?",
    "{name} has {paid} and buys {n} chairs at {price} each. How many dollars are left?",
    "From {paid} a school pays {n} books at {price} each. How many dollars remain?",
    "A club has {paid}. It pays {price} to each of {n} members. How many dollars does it still have?",
    "{n} nights in a hotel cost {price} each. {name} had {paid}. How many dollars are left?",
    "{name} gives {paid} for {n} {items} at {price} each. What is the change in dollars?",
    "Out of {paid}, {n} bills of {price} each are paid. How many dollars stay?",
)


@kind
def change(dice: Dice) -> Problem:
    """The money left after buying several equal things."""
    each, n = _price(dice, 30, 500), dice.number(30, 900)
    step = 10 ** len(str(n * each // 100)) // 20 * 100  # banknotes: a round sum that is enough
    paid = (n * each // step + 1) * step
    text = {"price": dollars(each), "paid": dollars(paid)}
    return Problem({"n": n, "cents": each, "paid": paid}, _in_dollars(paid - n * each), CHANGE, text)


SAVINGS = (
    "{name} has ${start} and saves ${a} a week for {n} weeks. How many dollars does {name} have then?",
    "An account holds ${start}. Each month ${a} come in, for {n} months. How many dollars are there then?",
    "{name} owns ${start} and earns ${a} a day. How many dollars does {name} have after {n} days?",
    "A club starts with ${start}. {n} members pay ${a} each. How many dollars does it have?",
    "A box holds ${start}. Then {n} guests put in ${a} each. How many dollars are in it?",
)
SAVINGS_SPENT = (
    "{name} has ${start}, saves ${a} a week for {n} weeks and spends ${b}. How many dollars are left?",
    "A club has ${start}. {n} members pay ${a} each and a party costs ${b}. How many dollars are left?",
    "{name} owns ${start}, earns ${a} a day for {n} days and pays ${b} rent. How many dollars remain?",
    "An account of ${start} gets ${a} a month for {n} months, then ${b} go out. How many dollars remain?",
    "A shop has ${start}, sells {n} {items} at ${a} and pays ${b} in wages. How many dollars are left?",
)


@kind
def savings(dice: Dice) -> Problem:
    """Money that grows by equal amounts, and is partly spent."""
    start, a, n = dice.number(200, 9000), dice.number(20, 900), dice.number(40, 400)
    spends = dice.likely(0.3 + dice.difficulty / 2)
    b = dice.number(60, 3000) if spends else 0
    b = min(b, start + a * n - 1)
    phrases = SAVINGS_SPENT if spends else SAVINGS
    params = {"start": start, "a": a, "n": n, "b": b}
    return Problem(params, str(start + a * n - b), phrases)
