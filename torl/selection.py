"""Which of the trajectories that were played train: the recipe's section ``filters``."""

from collections.abc import Sequence

from torl.algorithms.filters import MASKS, resample_on_correct
from torl.config import Recipe
from torl.learner.batch import Batch, sample_of
from torl.types import Group, Trajectory


class Selection:
    """``played`` trajectories of each task; ``keep`` group_size of them; ``batch`` what is left."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._masks = {name: MASKS[name] for name in recipe.filters.mask}
        self.played = recipe.group_size * recipe.filters.oversample

    def keep(self, groups: Sequence[Group], step: int) -> list[Group]:
        """Of each oversampled group the trajectories that stay (GRPO-RoC); all, where none was
        oversampled."""
        size, seed = self._recipe.group_size, self._recipe.seed
        if self._recipe.filters.oversample == 1:
            return list(groups)
        return [resample_on_correct(group, size, f"{seed}/{step}/{group.task.id}") for group in groups]

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
