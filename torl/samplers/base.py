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
    """How a token is drawn. ``temperature`` 0 is greedy (and its log-probability is 0)."""

    temperature: float = 1.0


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
    """Gives sessions. ``version`` counts the updates of the policy it samples from."""

    version: int

    def open(self, prompt_ids: Sequence[int], seeds: Sequence[Seed]) -> Sequence[Session]:
        """One session for each seed; they share the prompt's computation."""
        ...

    def set_weights(self, version: int) -> None:
        """Says that the policy's weights have changed: nothing computed before is reused."""
        ...

    async def close(self) -> None:
        """Frees what the sampler holds."""
        ...
