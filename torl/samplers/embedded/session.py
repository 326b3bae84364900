"""One growing context of the embedded sampler, and the request it may be waiting on."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from torl.errors import Bug, SamplerFault
from torl.samplers.base import SamplingParams, Seed
from torl.tokens import StopFinder
from torl.types import Completion, StopReason

if TYPE_CHECKING:
    from torl.samplers.embedded.engine import EmbeddedSampler


@dataclass(eq=False)
class Context:
    """Ids, and how many of them the cache holds in ``slot``: ``ids[:cached]``."""

    ids: list[int]
    cached: int = 0
    slot: int | None = None

    @property
    def missing(self) -> int:
        return len(self.ids) - self.cached


@dataclass(eq=False)
class Prompt(Context):
    """All of a group's prompt but the last id, computed once for its sessions."""

    sessions: "list[EmbeddedSession]" = field(default_factory=list)

    @property
    def awaited(self) -> bool:
        """Whether a session has still to start from it."""
        return any(not s.closed and s.slot is None for s in self.sessions)


class Request:
    """A completion in the making."""

    def __init__(self, stop: list[str], max_tokens: int, params: SamplingParams, version: int) -> None:
        self.finder = StopFinder(stop)
        self.max_tokens = max_tokens
        self.params = params
        self.completion = Completion([], [], StopReason.LENGTH, version=version)
        self.done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()


class EmbeddedSession(Context):
    """A context that is sampled from. When its last id has been fed, the logits that come back are
    for a new id."""

    def __init__(self, engine: "EmbeddedSampler", prompt: Prompt, ids: Sequence[int], seed: Seed) -> None:
        super().__init__(list(ids))
        self._engine = engine
        self.prompt = prompt
        self.request: Request | None = None
        self.closed = False
        self._uniforms = np.random.Generator(np.random.Philox(np.random.SeedSequence(list(seed))))

    async def sample(self, stop: list[str], max_tokens: int, params: SamplingParams) -> Completion:
        """Continues until an end-of-turn id, a stop string, or ``max_tokens``."""
        if self.closed:
            raise SamplerFault("this session is closed")
        if self.request is not None:
            raise Bug("a session was asked for tokens while it samples")
        if max_tokens <= 0:
            return Completion([], [], StopReason.LENGTH, version=self._engine.version)
        self.request = Request(stop, max_tokens, params, self._engine.version)
        self._engine.submit(self)
        try:
            return await self.request.done
        except asyncio.CancelledError:
            self.close()  # nobody will know what it has sampled
            raise

    def append(self, ids: Sequence[int]) -> None:
        """Adds an observation; it is computed when sampling goes on."""
        if self.request is not None:
            raise Bug("an observation was appended to a session while it samples")
        self.ids += ids

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._engine.release(self)

    def next_uniform(self) -> float:
        """The next number of this session's own random stream: one for each sampled id."""
        return float(self._uniforms.random())

    def receive(self, token: int, logprob: float, piece: bytes, is_end: bool) -> bool:
        """Records a sampled id. Returns whether that ended the request."""
        assert self.request is not None
        out = self.request.completion
        self.ids.append(token)
        out.ids.append(token)
        out.logprobs.append(logprob)
        if is_end:
            out.stop_reason = StopReason.END
            return True
        out.stop = self.request.finder.push(piece)
        if out.stop is not None:
            out.stop_reason = StopReason.STOP
            return True
        return len(out.ids) >= self.request.max_tokens

    def finish(self, error: BaseException | None = None) -> None:
        """Answers the waiting coroutine."""
        request, self.request = self.request, None
        if request is None or request.done.done():
            return
        if error is not None:
            request.done.set_exception(error)
        else:
            request.done.set_result(request.completion)
