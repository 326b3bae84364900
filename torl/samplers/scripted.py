"""A sampler that says what it is told to: for tests of everything above the boundary."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torl.errors import SamplerFault
from torl.samplers.base import SamplingParams, Seed
from torl.tokens import StopFinder, Vocabulary
from torl.types import Completion, StopReason

Script = Callable[[Seed, Sequence[int]], Sequence[int]]
"""From a session's seed and its context so far to the ids that it would sample next."""


@dataclass
class ScriptedSession:
    sampler: "ScriptedSampler"
    seed: Seed
    context: list[int]
    closed: bool = False

    async def sample(self, stop: list[str], max_tokens: int, params: SamplingParams) -> Completion:  # noqa: ARG002
        await asyncio.sleep(0)  # a real sampler lets others run, too
        if self.closed:
            raise SamplerFault("this session is closed")
        finder = StopFinder(stop)
        out = Completion([], [], StopReason.LENGTH, version=self.sampler.version)
        for token in self.sampler.script(self.seed, self.context):
            if len(out.ids) == max_tokens:
                break
            out.ids.append(token)
            out.logprobs.append(-1.0)
            if token in self.sampler.end_ids:
                out.stop_reason = StopReason.END
                break
            out.stop = finder.push(self.sampler.vocabulary.bytes_of(token))
            if out.stop is not None:
                out.stop_reason = StopReason.STOP
                break
        self.context += out.ids
        return out

    def append(self, ids: Sequence[int]) -> None:
        self.context += ids

    def close(self) -> None:
        self.closed = True


@dataclass
class ScriptedSampler:
    """Draws from ``script``; every id has the log-probability -1. When the script is used up
    before a stop, the completion ends with LENGTH."""

    vocabulary: Vocabulary
    script: Script
    end_ids: frozenset[int] = frozenset()
    version: int = 0
    kernels: str = ""
    sessions: list[ScriptedSession] = field(default_factory=list)

    def open(self, prompt_ids: Sequence[int], seeds: Sequence[Seed]) -> list[ScriptedSession]:
        opened = [ScriptedSession(self, seed, list(prompt_ids)) for seed in seeds]
        self.sessions += opened
        return opened

    def set_weights(self, version: int) -> None:
        self.version = version

    async def close(self) -> None:
        for session in self.sessions:
            session.close()


def say(vocabulary: Vocabulary, *turns: str) -> Script:
    """A script that writes the given turns one after the other, for every seed alike.

    Which turn comes next is read off the number of sessions' samples so far, per seed.
    """
    counts: dict[Seed, int] = {}

    def script(seed: Seed, context: Sequence[int]) -> Sequence[int]:  # noqa: ARG001
        n = counts.get(seed, 0)
        counts[seed] = n + 1
        return vocabulary.encode(turns[n]) if n < len(turns) else []

    return script
