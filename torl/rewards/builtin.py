"""The built-in reward functions. A reward function is

    (trajectory, task) -> float | dict[str, float]

sync or async, listed in the recipe by name or import path with a weight. What it cannot
decide it raises; it never returns a made-up number.
"""

from typing import TYPE_CHECKING

from torl.rewards.deciders import DECIDERS, Means
from torl.rewards.verifier import Verifier
from torl.tools.python import Box
from torl.types import Task, Trajectory

if TYPE_CHECKING:
    from torl.rewards.settings import Correctness as CorrectnessConfig

NOT_EXECUTABLE = -0.5  # the paper's Table 2


class Correctness:
    """The paper's main reward: ``right`` for a correct final answer, else ``wrong``.

    What decides is ``config.how`` (deciders.py). A missing answer is wrong. Sets ``trajectory.answer`` and
    ``trajectory.correct``. Raises VerifierFault when the answer cannot be decided, UserError when the task
    lacks what it is compared with.
    """

    def __init__(self, config: "CorrectnessConfig", verifier: Verifier, box: Box | None = None) -> None:
        self.config = config
        self.decider = DECIDERS[config.how]
        self.means = Means(config, verifier, box)

    async def __call__(self, trajectory: Trajectory, task: Task) -> float:
        trajectory.correct = None
        trajectory.answer = await self.decider.find(trajectory, self.means)
        self.decider.check(task)
        trajectory.correct = trajectory.answer is not None and await self.decider.equal(
            trajectory.answer, task, self.means
        )
        return self.config.right if trajectory.correct else self.config.wrong


def executability(trajectory: Trajectory, task: Task) -> float:  # noqa: ARG001
    """The paper's penalty: -0.5 if code was executed and no executed call passed, else 0.

    No code, or only calls that were never executed (malformed, past C), is 0: the reference
    code punished those too, and so punished not using the tool. One call that passed is
    enough: repairing one's own error is a behaviour to keep, not to punish. A fault of the
    sandbox is an exception, so it never gets here.
    """
    executed = [result for result in trajectory.calls if result.executed]
    return NOT_EXECUTABLE if executed and not any(result.ok for result in executed) else 0.0


class Overlong:
    """Soft overlong punishment: a trajectory of n ids, observations included, within a budget of L of which
    the last B = buffer_ratio L are the buffer, gets

        0                    up to L - B
        (L - B - n) / B      within the buffer: down to -1 at L

    Source: DAPO, arXiv 2503.14476, equation 13.
    """

    def __init__(self, buffer_ratio: float, longest: int) -> None:
        self.buffer = buffer_ratio * longest
        self.free = longest - self.buffer

    def __call__(self, trajectory: Trajectory, task: Task) -> float:  # noqa: ARG002
        return max(-1.0, min(0.0, (self.free - len(trajectory.ids)) / self.buffer))
