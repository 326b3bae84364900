"""Which tokens of a pack see which: segments in a tree, each behind the one it continues."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """S segments laid one behind the other, T tokens in all. A token sees its own segment up to itself,
    and all of the segment's parent, that one's parent, and so on. ``parents[s]`` is -1 or less than s."""

    sizes: Sequence[int]
    parents: Sequence[int]

    @cached_property
    def starts(self) -> Tensor:
        """First token of each segment, and the end of the last: (S + 1,) int32."""
        return torch.tensor([0, *self.sizes]).cumsum(0).int()

    @cached_property
    def segments(self) -> Tensor:
        """The segment of each token: (T,) int32."""
        return torch.arange(len(self.sizes), dtype=torch.int32).repeat_interleave(torch.tensor(self.sizes))

    @cached_property
    def parent_of(self) -> Tensor:
        """``parents`` as a tensor: (S,) int32."""
        return torch.tensor(self.parents, dtype=torch.int32)

    @cached_property
    def followers(self) -> tuple[Tensor, Tensor]:
        """Segments that see segment s: ``which[bounds[s]:bounds[s + 1]]``. bounds (S + 1,), which (F,),
        int32."""
        behind: list[list[int]] = [[] for _ in self.sizes]
        for segment in range(len(self.sizes)):
            for above in self._line(segment)[1:]:
                behind[above].append(segment)
        bounds = torch.tensor([0, *map(len, behind)]).cumsum(0).int()
        return bounds, torch.tensor([s for some in behind for s in some], dtype=torch.int32)

    @cached_property
    def mask(self) -> Tensor:
        """(T, T) bool, True where row sees column."""
        seen = torch.zeros(len(self.sizes), len(self.sizes), dtype=torch.bool)
        for segment in range(len(self.sizes)):
            seen[segment, self._line(segment)] = True
        which, order = self.segments.long(), torch.arange(len(self.segments))
        return seen[which][:, which] & (order[None, :] <= order[:, None])

    def _line(self, segment: int) -> list[int]:
        """The segment, its parent, and so on."""
        line = []
        while segment >= 0:
            line.append(segment)
            segment = self.parents[segment]
        return line
