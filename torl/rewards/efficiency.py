"""What tool use cost: the reward function ``tool_efficiency``."""

from typing import TYPE_CHECKING

from torl.errors import VerifierFault
from torl.rewards.calls import Call, CallKind, calls_of
from torl.types import Task, Trajectory

if TYPE_CHECKING:
    from torl.rewards.settings import Efficiency


class ToolEfficiency:
    """Minus the cost of a correct trajectory's calls, ``efficiency.most`` at most; 0 for all others.

    A wrong trajectory pays nothing, so that giving up early is never the cheaper way to be wrong, and the
    bound keeps every right one worth more than a wrong one (checked with the recipe). Of the same kind:
    AdaTIR's penalty, clipped so that correct samples stay positive; OTC (arXiv 2504.14870) scales a correct
    answer's reward by its calls instead.
    """

    def __init__(self, config: "Efficiency") -> None:
        self.config = config

    def __call__(self, trajectory: Trajectory, task: Task) -> float:  # noqa: ARG002
        """Raises VerifierFault when it is not known whether the trajectory is correct."""
        if trajectory.correct is None:
            raise VerifierFault("whether the trajectory is correct was not decided before its costs")
        if not trajectory.correct:
            return 0.0
        return -min(self.config.most, cost(calls_of(trajectory), self.config))


def cost(calls: list[Call], config: "Efficiency") -> float:
    """``per_call * max(0, n - free_calls) + per_second * seconds``, and for each redundant, unused or
    late call what the recipe says beyond that; in units of reward."""
    further = {
        CallKind.FRESH: 0.0,
        CallKind.REDUNDANT: config.redundant,
        CallKind.UNUSED: config.unused,
        CallKind.AFTER_ANSWER: config.after_answer,
    }
    total = config.per_call * max(0, len(calls) - config.free_calls)
    total += config.per_second * sum(call.result.run_s for call in calls)
    return total + sum(further[call.kind] for call in calls)
