"""Which tasks a training step sees: a function of the step, so a resumed run needs no state."""

import random
from collections.abc import Sequence

from torl.errors import UserError
from torl.types import Task


class TaskStream:
    """Endless batches: every task once an epoch, each epoch in an order of its own.

    ``batch(step)`` depends on (tasks, prompts_per_step, seed, step) alone. A batch never holds
    a task twice, also where it spans two epochs: groups of one step are told apart by task.

    Example: ``TaskStream(tasks, prompts_per_step=12, seed=0).batch(5)`` gives 12 tasks.
    """

    def __init__(self, tasks: Sequence[Task], prompts_per_step: int, seed: int) -> None:
        if not tasks:
            raise UserError("there are no training tasks; check tasks.train and tasks.limit")
        if prompts_per_step > len(tasks):
            raise UserError(
                f"prompts_per_step={prompts_per_step} is more than the {len(tasks)} training tasks, and a "
                "step takes a task once; lower it, or give more tasks (see tasks.size, tasks.limit)"
            )
        self.tasks = tasks
        self.prompts_per_step = prompts_per_step
        self.seed = seed
        self._orders: list[list[int]] = []  # computed when needed; a cache, not state

    def batch(self, step: int) -> list[Task]:
        """The tasks of a step, counted from 0."""
        first = step * self.prompts_per_step
        return [self._at(first + i) for i in range(self.prompts_per_step)]

    def epoch(self, step: int) -> float:
        """How often all tasks were seen before this step, e.g. 1.5."""
        return step * self.prompts_per_step / len(self.tasks)

    def _at(self, position: int) -> Task:
        epoch, place = divmod(position, len(self.tasks))
        while len(self._orders) <= epoch:
            self._orders.append(self._order(len(self._orders)))
        return self.tasks[self._orders[epoch][place]]

    def _order(self, epoch: int) -> list[int]:
        """A permutation whose head avoids the tasks that share a batch with it."""
        order = list(range(len(self.tasks)))
        random.Random(f"tasks/{self.seed}/{epoch}").shuffle(order)
        begun = epoch * len(self.tasks) % self.prompts_per_step
        if not begun:
            return order
        taken = set(self._orders[epoch - 1][-begun:])
        head = [i for i in order if i not in taken][: self.prompts_per_step - begun]
        in_head = set(head)
        return head + [i for i in order if i not in in_head]
