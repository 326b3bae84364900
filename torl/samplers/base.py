"""The first boundary: a sampler gives tokens, and nothing above it knows how.

A session holds one growing context. The key/value cache survives a tool call, other sessions
go on while a tool runs, and batching is the sampler's own business.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torl.types import Completion

Seed = tuple[int, ...]
"""Names a random stream: (run seed, step, task, sample). A trajectory's tokens depend on its
own stream only, never on who else is in the batch or on how long a tool took."""


@dataclass(frozen=True)
class SamplingParams:
    """How a token is drawn. ``temperature`` 0 is greedy (and its log-probability is 0).

    Of the distribution at this temperature, only the ``top_k`` likeliest ids are kept (0: all); of these
    the fewest whose probabilities add up to ``top_p``; of these the ones that are at least ``min_p`` times
    as likely as the likeliest. Log-probabilities are those of the distribution that is left.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def restricts(self) -> bool:
        """Whether some ids may not be drawn at all."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


class Session(Protocol):
    """One growing context."""

    async def sample(self, stop: list[str], max_tokens: int, params: SamplingParams) -> Completion:
        """Continues from where the context stands until an end-of-turn id, a stop string, or
        ``max_tokens``. Returns the ids with their log-probabilities. Raises SamplerFault."""
        ...

    def append(self, ids: Sequence[int]) -> None:
        """Adds an observation to the context, without sampling."""
        ...

    def close(self) -> None:
        """Frees the session's place. Closing twice is harmless."""
        ...


class Sampler(Protocol):
    """Gives sessions. ``version`` counts the updates of the policy it samples from; ``kernels`` says
    what computes it, "" where that is its own business."""

    version: int
    kernels: str

    def open(self, prompt_ids: Sequence[int], seeds: Sequence[Seed]) -> Sequence[Session]:
        """One session for each seed; they share the prompt's computation."""
        ...

    def set_weights(self, version: int) -> None:
        """Says that the policy's weights have changed: nothing computed before is reused."""
        ...

    async def close(self) -> None:
        """Frees what the sampler holds."""
        ...
