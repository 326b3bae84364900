"""The ways to decide whether a trajectory is correct, by the name that ``correctness.how`` gives.

A decider finds the answer in a trajectory and compares it with what the task says. To add one: two
functions, an entry in ``DECIDERS``, its name in ``Correctness.how`` (torl/rewards/settings.py).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from torl.errors import UserError
from torl.rewards import choice, numeric
from torl.rewards.answers import final_answer, last_code, prose
from torl.rewards.unit_tests import passes, source_of_tests
from torl.rewards.verifier import Verifier
from torl.tools.python import Box
from torl.types import Task, Trajectory

if TYPE_CHECKING:
    from torl.rewards.settings import Correctness


@dataclass(frozen=True)
class Means:
    """What a decider may use. ``box`` is there when ``how`` is "tests"."""

    config: "Correctness"
    verifier: Verifier
    box: Box | None = None


@dataclass(frozen=True)
class Decider:
    """``find`` gives the answer or None (then it is wrong), ``equal`` the verdict on one.

    ``check`` raises UserError, naming the task, when the task lacks what is compared with. The others raise
    VerifierFault for what could not be decided.
    """

    find: Callable[[Trajectory, Means], Awaitable[str | None]]
    equal: Callable[[str, Task, Means], Awaitable[bool]]
    check: Callable[[Task], object]


async def boxed(trajectory: Trajectory, _: Means) -> str | None:
    """The last box of the policy's prose."""
    return final_answer(trajectory)


async def by_pattern(trajectory: Trajectory, means: Means) -> str | None:
    """The last match of ``correctness.pattern`` in the policy's prose. No match, or an empty one: None."""
    found = await means.verifier.find(means.config.pattern, prose(trajectory))
    return (found or "").strip() or None


async def program(trajectory: Trajectory, _: Means) -> str | None:
    """The policy's last block of Python."""
    return last_code(trajectory)


async def math(answer: str, task: Task, means: Means) -> bool:
    """Equal in mathematics: math-verify on whole expressions, and what comes before it (plain.py)."""
    return await means.verifier.check(answer, task.answer)


async def exact(answer: str, task: Task, means: Means) -> bool:
    """Equal strings, once each run of white space is one space and none stands at the ends; with
    ``ignore_case`` whatever the case."""
    a, b = " ".join(answer.split()), " ".join(task.answer.split())
    return a.casefold() == b.casefold() if means.config.ignore_case else a == b


async def close(answer: str, task: Task, means: Means) -> bool:
    """Two numbers within the tolerance; what is not a number is wrong (numeric.py)."""
    found = numeric.number(answer)
    config = means.config
    return found is not None and numeric.close(
        found, _reference(task), rel_tol=config.rel_tol, abs_tol=config.abs_tol
    )


async def same_choice(answer: str, task: Task, _: Means) -> bool:
    """The same letter (choice.py)."""
    options = choice.options_of(task)
    return choice.chosen(answer, options) == choice.right_letter(task, options)


async def passes_tests(answer: str, task: Task, means: Means) -> bool:
    """The program passes the task's tests (unit_tests.py)."""
    if means.box is None:
        raise UserError("correctness.how=tests needs a sandbox to run them in")
    return await passes(answer, source_of_tests(task), means.box)


def _has_answer(task: Task) -> None:
    if not task.answer.strip():
        raise UserError(
            f"task {task.id} has no answer, and the recipe rewards correctness; "
            "give it one or take correctness out of rewards"
        )


def _reference(task: Task) -> Fraction:
    _has_answer(task)
    value = numeric.number(task.answer)
    if value is None:
        raise UserError(
            f"task {task.id}: correctness.how=numeric, and its answer {task.answer[:80]!r} is no number; "
            "correct it, or choose another correctness.how"
        )
    return value


def _letter(task: Task) -> str:
    _has_answer(task)
    return choice.right_letter(task, choice.options_of(task))


DECIDERS: dict[str, Decider] = {
    "math": Decider(boxed, math, _has_answer),
    "exact": Decider(boxed, exact, _has_answer),
    "numeric": Decider(boxed, close, _reference),
    "choice": Decider(boxed, same_choice, _letter),
    "regex": Decider(by_pattern, exact, _has_answer),
    "tests": Decider(program, passes_tests, source_of_tests),
}
