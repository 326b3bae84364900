"""Which of the trajectories that are played train: the recipe's section ``filters``."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from torl.algorithms.filters import MASKS, has_signal, resample_on_correct
from torl.config import Recipe
from torl.learner.batch import Batch, sample_of
from torl.types import Group, Trajectory


@dataclass(frozen=True)
class Chosen:
    """A step's groups: all that were ``played``, and those that were ``kept``. ``draws`` batches of tasks
    were drawn for them."""

    played: list[Group]
    kept: list[Group]
    draws: int

    def metrics(self) -> dict[str, float]:
        """What was dropped; nothing where no filter of groups is on."""
        left_out = len(self.played) - len(self.kept)
        return {"filters/draws": float(self.draws), "filters/groups_left_out": float(left_out)}


class Selection:
    """``played`` trajectories of each task; ``gather`` groups until enough of them have signal; ``batch``
    what is left of them."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._masks = {name: MASKS[name] for name in recipe.filters.mask}
        self.played = recipe.group_size * recipe.filters.oversample

    async def gather(self, play: Callable[[int], Awaitable[list[Group]]], number: int) -> Chosen:
        """The groups of the batch of tasks with this ``number``; with ``filters.draws`` above 1 those with
        signal alone, of as many further batches as prompts_per_step of them take, and of so many at most.
        Where there is no signal at all, what was drawn last, so that the step says so.

        Source: dynamic sampling, DAPO, arXiv 2503.14476, section 3.2.
        """
        most, wanted = self._recipe.filters.draws, self._recipe.prompts_per_step
        played: list[Group] = []
        kept: list[Group] = []
        draws = 0
        while draws < most and (not draws or len(kept) < wanted):
            found = await play(number + draws)
            thinned = self._thin(found, number + draws)
            kept += [group for group in thinned if most == 1 or has_signal(group)]
            played += found
            draws += 1
        return Chosen(played, kept[:wanted] or thinned, draws)

    def batch(self, trajectories: Sequence[Trajectory]) -> tuple[Batch, dict[str, float]]:
        """The learner's samples, the masked ones without a token that trains; and each mask's share of the
        trajectories as a metric. One may be caught by several."""
        caught = {name: [mask(t) for t in trajectories] for name, mask in self._masks.items()}
        masked = [any(column[n] for column in caught.values()) for n in range(len(trajectories))]
        truncated = self._recipe.rollout.train_truncated
        samples = [
            sample_of(t, trains=not hit and (truncated or not t.truncated))
            for t, hit in zip(trajectories, masked, strict=True)
        ]
        shares = {f"filters/{name}_ratio": sum(hits) / len(hits) for name, hits in caught.items() if hits}
        return Batch(samples), shares

    def _thin(self, groups: list[Group], number: int) -> list[Group]:
        """Of each oversampled group the trajectories that stay (GRPO-RoC); all, where none was
        oversampled."""
        if self._recipe.filters.oversample == 1:
            return groups
        size, seed = self._recipe.group_size, self._recipe.seed
        return [resample_on_correct(group, size, f"{seed}/{number}/{group.task.id}") for group in groups]
