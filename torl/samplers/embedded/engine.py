"""Continuous batching in the process of the learner, on the learner's weights.

Each pass feeds every running session its next id, and beside these the ids of prompts and observations
that are still to be computed. A session that waits for its tool keeps its place and costs nothing; a
place that is given back is taken in the next pass; a prompt is computed once for all sessions of a group,
and what it shares with the prompt before it (worked examples, a system message) is not computed again.
When the cache is full, the newest contexts give up their blocks and are computed again later, to the same
numbers.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torl.errors import SamplerFault, UserError
from torl.insight.spent import Spent
from torl.model.network import Network, unsupported
from torl.samplers.base import Seed
from torl.samplers.embedded.decoder import Decoder
from torl.samplers.embedded.foreign import ForeignDecoder
from torl.samplers.embedded.session import Context, EmbeddedSession, Prompt
from torl.threads import dismiss_workers
from torl.tokens import Vocabulary

log = logging.getLogger("torl")

Work = list[tuple[Context, int]]
"""What a pass does: contexts, and how many of their missing ids it feeds."""


class EmbeddedSampler:
    """Gives tokens from ``model``, a causal model of transformers; fast for network.FAMILIES.

    max_sequences: sessions that are decoded together. prefill_tokens: ids of prompts and observations
    that a pass computes at most. cache_gb: memory for keys and values, taken as it is needed.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary,
        end_ids: frozenset[int],
        *,
        max_sequences: int = 64,
        prefill_tokens: int = 512,
        cache_gb: float = 4.0,
        spent: Spent | None = None,
    ) -> None:
        self.version = 0
        self.tokens_sampled = 0
        self._spent = spent or Spent()
        self._vocabulary = vocabulary
        self._end_ids = end_ids
        self._max_sequences = max_sequences
        self._prefill_tokens = prefill_tokens
        slots = 2 * max_sequences + 2  # of sessions, of their prompts, and of others' prompts
        self._decoder: Decoder | ForeignDecoder
        if (why := unsupported(model)) is None:
            network = Network(model)
            self.kernels = network.kernels.name
            self._decoder = Decoder(network, slots, int(cache_gb * 2**30))
        else:
            log.warning("%s; so the model's own forward pass is used, which is slower", why)
            self.kernels = "transformers"
            self._decoder = ForeignDecoder(model, slots)
        self._free_slots = list(range(slots))
        self._waiting: deque[EmbeddedSession] = deque()  # asked for tokens, not yet admitted
        self._live: list[EmbeddedSession] = []  # admitted, oldest first
        self._prompts: list[Prompt] = []  # that have a slot, the newest last
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="torl-decode")

    def open(self, prompt_ids: Sequence[int], seeds: Sequence[Seed]) -> list[EmbeddedSession]:
        """One session a seed. A session takes its place when it first samples."""
        if not prompt_ids:
            raise UserError("an empty prompt: a model needs at least one id to continue from")
        prompt = Prompt(list(prompt_ids[:-1]))
        prompt.sessions += [EmbeddedSession(self, prompt, prompt_ids, seed) for seed in seeds]
        return prompt.sessions

    def set_weights(self, version: int) -> None:
        """The weights are the learner's own; what was computed from them is forgotten."""
        if any(not session.closed for session in self._live):
            raise SamplerFault("weights changed while trajectories are being sampled")
        self._settle()
        self.version = version
        self._decoder.stale = True
        for prompt in self._prompts:
            self._forget(prompt)
        self._prompts.clear()

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        self._thread.shutdown(wait=True)

    # What sessions call, on the event loop's thread.

    def submit(self, session: EmbeddedSession) -> None:
        if session not in self._live:
            self._waiting.append(session)
        self._start()

    def release(self, session: EmbeddedSession) -> None:
        """Its place is taken back between passes: one may be running on the sampler's thread."""
        if session in self._waiting:
            self._waiting.remove(session)
            session.finish(_closed())
        if self._waiting:  # the loop ends when all places are held by sessions that wait for tools
            self._start()

    # The loop.

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        dismiss_workers()  # the learner's, which works in this thread
        try:
            while True:
                self._admit()
                work = self._plan()
                if not work:
                    self._thread.submit(dismiss_workers)
                    return
                for session in await self._timed_pass(loop, work):
                    session.finish()
                await asyncio.sleep(0)  # what was answered may ask again before the next pass
        except Exception as error:
            self._fail(error)  # those who wait raise it
        except BaseException:
            self._fail(SamplerFault("the sampler was stopped"))
            raise

    async def _timed_pass(self, loop: asyncio.AbstractEventLoop, work: Work) -> list[EmbeddedSession]:
        """A pass on the sampler's own thread; its time is that of its rows."""
        more = sum(count for _, count in work if count > 1)
        rows = more + sum(count == 1 for _, count in work)
        start = time.monotonic()
        with self._spent.on("decode"):
            finished = await loop.run_in_executor(self._thread, self._pass, work)
        self._spent.move((time.monotonic() - start) * more / rows, "decode", "prefill")
        return finished

    def _admit(self) -> None:
        """Takes places back and gives them to sessions that wait, first come, first served."""
        for session in self._live:
            if session.closed:
                session.finish(_closed())
                self._forget(session)
        self._live = [session for session in self._live if not session.closed]
        while self._waiting and len(self._live) < self._max_sequences:
            self._live.append(self._waiting.popleft())

    def _fail(self, error: Exception) -> None:
        """No session goes on after an error, not even one that waits for its tool: what the
        cache holds is in doubt."""
        self._settle()
        sessions = [*self._live, *self._waiting]
        for context in (*self._live, *self._prompts):
            self._forget(context)
        self._waiting.clear()
        self._live.clear()
        self._prompts.clear()
        self._decoder.cache.clear()
        for session in sessions:
            session.closed = True
            session.finish(error)

    def _settle(self) -> None:
        """Waits for the pass in flight, if any. There is one thread: what is put behind the
        pass runs after it."""
        self._thread.submit(lambda: None).result()

    # What a pass does. Planned between passes, oldest session first.

    def _plan(self) -> Work:
        """Feeds each running session what it misses, and prompts what their sessions wait for."""
        work: Work = []
        room = self._prefill_tokens
        running = [s for s in self._live if s.request is not None]
        for session in running:
            context = self._next_context(session, work)
            if context is None:
                continue
            whole = context.missing == 1 or not self._decoder.any_pieces
            count = context.missing if whole else min(context.missing, room)
            if count == 0 or (context is not session and any(context is c for c, _ in work)):
                continue
            if self._reserve(session, context.slot, context.cached + count, work):
                work.append((context, count))
                room -= count if count > 1 else 0
        if running and not work:
            raise UserError(
                f"the sampler's cache holds {self._decoder.cache.tokens} tokens, too few for one sequence "
                f"of {max(len(s.ids) for s in running)} beside its prompt; raise sampler.cache_gb"
            )
        for prompt in [p for p in self._prompts[:-1] if not p.awaited]:
            self._forget(prompt)
            self._prompts.remove(prompt)
        return work

    def _next_context(self, session: EmbeddedSession, work: Work) -> Context | None:
        """What is to be fed for a session: its prompt, until that is computed, and then itself; None
        while there is no room to begin."""
        prompt = session.prompt
        if session.slot is not None:
            return session
        if prompt.missing and prompt.slot is None:
            self._place(prompt, self._free_slot(session, work))
        if prompt.missing:
            return prompt
        slot = self._free_slot(session, work)
        if prompt.slot is not None:
            while not self._decoder.cache.fork(prompt.slot, slot, prompt.cached):
                if not self._preempt(session, work):
                    self._free_slots.append(slot)
                    return None
        session.slot, session.cached = slot, prompt.cached
        return session

    def _free_slot(self, session: EmbeddedSession, work: Work) -> int:
        """A slot for a session or its prompt. When none is free, another prompt gives its own up."""
        if not self._free_slots:
            busy = [session.prompt, *(context for context, _ in work)]
            prompt = next(p for p in self._prompts if p not in busy)
            self._forget(prompt)
            self._prompts.remove(prompt)
        return self._free_slots.pop()

    def _reserve(self, session: EmbeddedSession, slot: int | None, tokens: int, work: Work) -> bool:
        """Makes room for ``tokens`` in the slot of a session, or of the prompt it waits for."""
        assert slot is not None
        while not self._decoder.cache.reserve(slot, tokens):
            if not self._preempt(session, work):
                return False
        return True

    def _place(self, prompt: Prompt, slot: int) -> None:
        """Gives a prompt its slot, with what it shares with the newest one."""
        prompt.slot = slot
        newest = self._prompts[-1] if self._prompts and self._decoder.any_pieces else None
        if newest is not None and newest.slot is not None:
            shared = _common_prefix(newest.ids[: newest.cached], prompt.ids)
            if self._decoder.cache.fork(newest.slot, prompt.slot, shared):
                prompt.cached = shared
        self._prompts.append(prompt)

    def _preempt(self, session: EmbeddedSession, work: Work) -> bool:
        """Takes the blocks of a context that is not in ``work``: a prompt's, a session's that waits for
        its tool, or a running one's that came after ``session``, so that the oldest always goes on."""
        idle = [s for s in self._live if s.request is None]
        newer = [s for s in self._live[self._live.index(session) + 1 :] if s.request is not None]
        planned = [context for context, _ in work]
        for victim in (*self._prompts, *reversed(idle), *reversed(newer)):
            if victim.slot is None or victim is session.prompt or victim in planned:
                continue
            self._forget(victim)
            if isinstance(victim, Prompt):
                self._prompts.remove(victim)
            return True
        return False

    def _forget(self, context: Context) -> None:
        if context.slot is not None:
            self._decoder.cache.release(context.slot)
            self._free_slots.append(context.slot)
        context.slot, context.cached = None, 0

    # A pass, on the sampler's own thread.

    def _pass(self, work: Work) -> list[EmbeddedSession]:
        """Feeds the ids and draws one for each session that is fed to its end. Returns the sessions
        whose request ended."""
        ids: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        ready: list[EmbeddedSession] = []
        last: list[int] = []
        for context, count in work:
            assert context.slot is not None
            fed = context.cached + count
            ids += context.ids[context.cached : fed]
            slots += [context.slot] * count
            positions += range(context.cached, fed)
            context.cached = fed
            if isinstance(context, EmbeddedSession) and context.missing == 0:
                ready.append(context)
                last.append(len(ids) - 1)
        logits = self._decoder.forward(ids, slots, positions, last)
        return self._draw(ready, logits) if ready else []

    def _draw(self, sessions: list[EmbeddedSession], logits: Any) -> list[EmbeddedSession]:
        params = [s.request.params for s in sessions if s.request is not None]
        drawn, logprobs = self._decoder.draw(logits, [s.next_uniform() for s in sessions], params)
        self.tokens_sampled += len(sessions)
        broken = logprobs[~logprobs.isfinite()].tolist()
        if broken:
            raise SamplerFault(f"log-probability {broken[0]} for a sampled id: the weights are broken")
        return [
            session
            for session, token, logprob in zip(sessions, drawn.tolist(), logprobs.tolist(), strict=True)
            if session.request is not None
            and session.receive(token, logprob, self._vocabulary.bytes_of(token), token in self._end_ids)
        ]


def _closed() -> SamplerFault:
    return SamplerFault("the session was closed while it sampled")


def _common_prefix(a: list[int], b: list[int]) -> int:
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))
