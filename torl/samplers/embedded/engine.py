"""Continuous batching in the process of the learner, on the learner's weights.

Each pass gives every running session one token. A session that waits for its tool keeps its
slot and costs nothing; a slot that is given back is refilled in the next pass; a prompt is
computed once for all sessions of a group, and what it shares with the prompt before it (worked
examples, a system message) is not computed again.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from torl.errors import SamplerFault, UserError
from torl.samplers.base import Seed
from torl.samplers.embedded.cache import BLOCK
from torl.samplers.embedded.decoder import ROW_MULTIPLE, Decoder
from torl.samplers.embedded.draw import draw
from torl.samplers.embedded.session import EmbeddedSession
from torl.tokens import Vocabulary

RIDE_ALONG = 16  # so few ids are fed one a pass, beside the others' decoding; more are prefilled


class EmbeddedSampler:
    """Gives tokens from ``model``, a transformers model of one of decoder.FAMILIES.

    max_sequences: slots that are decoded together. prefill_tokens: longest chunk of a prompt
    or an observation computed at once.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary,
        end_ids: frozenset[int],
        max_sequences: int = 64,
        prefill_tokens: int = 512,
    ) -> None:
        self.version = 0
        self.tokens_sampled = 0
        self._decoder = Decoder(model)
        self._vocabulary = vocabulary
        self._end_ids = end_ids
        self._prefill_tokens = prefill_tokens
        slots = -(-max_sequences // ROW_MULTIPLE) * ROW_MULTIPLE
        self._prompt_slot = slots  # one more slot holds the newest prompt, to be copied from
        self._prompt_ids: list[int] = []  # what is in it
        self._cache = self._decoder.new_cache(slots + 1, tokens=512)
        self._owners: list[EmbeddedSession | None] = [None] * slots
        self._waiting: deque[EmbeddedSession] = deque()  # asked for tokens, have no slot yet
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="torl-decode")

    def open(self, prompt_ids: Sequence[int], seeds: Sequence[Seed]) -> list[EmbeddedSession]:
        """One session a seed. A session takes its slot when it first samples."""
        if not prompt_ids:
            raise UserError("an empty prompt: a model needs at least one id to continue from")
        return [EmbeddedSession(self, prompt_ids, seed) for seed in seeds]

    def set_weights(self, version: int) -> None:
        """The weights are the learner's own, so only what was computed from them is forgotten."""
        if any(owner is not None and not owner.closed for owner in self._owners):
            raise SamplerFault("weights changed while trajectories are being sampled")
        self._settle()
        self.version = version
        self._prompt_ids = []

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        self._thread.shutdown(wait=True)

    # What sessions call, on the event loop's thread.

    def submit(self, session: EmbeddedSession) -> None:
        if session.slot is None:
            self._waiting.append(session)
        self._start()

    def release(self, session: EmbeddedSession) -> None:
        """Its slot is taken back between passes: one may be running on the sampler's thread."""
        if session in self._waiting:
            self._waiting.remove(session)
            session.finish(_closed())
        if self._waiting:  # the loop ends when all slots are held by sessions that wait for tools
            self._start()

    # The loop.

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._admit()
                running = [s for s in self._owners if s is not None and s.request is not None]
                if not running:
                    return
                finished = await loop.run_in_executor(self._thread, self._pass, running)
                for session in finished:
                    session.finish()
                await asyncio.sleep(0)  # what was answered may ask again before the next pass
        except Exception as error:
            self._fail(error)  # those who wait raise it
        except BaseException:
            self._fail(SamplerFault("the sampler was stopped"))
            raise

    def _admit(self) -> None:
        """Gives free slots to sessions that wait, first come, first served, lowest slot first."""
        for slot, owner in enumerate(self._owners):
            if owner is not None and owner.closed:
                owner.finish(_closed())
                self._owners[slot] = None
            if self._owners[slot] is None and self._waiting:
                session = self._waiting.popleft()
                session.slot = slot
                self._owners[slot] = session

    def _fail(self, error: Exception) -> None:
        """No session goes on after an error, not even one that waits for its tool: what the
        cache holds is in doubt."""
        self._settle()
        sessions = [*(s for s in self._owners if s is not None), *self._waiting]
        self._waiting.clear()
        self._owners = [None] * len(self._owners)
        self._prompt_ids = []
        self._cache.clear()
        for session in sessions:
            session.closed = True
            session.finish(error)

    def _settle(self) -> None:
        """Waits for the pass in flight, if any. There is one thread: what is put behind the
        pass runs after it."""
        self._thread.submit(lambda: None).result()

    # One pass, on the sampler's own thread.

    @torch.inference_mode()
    def _pass(self, running: list[EmbeddedSession]) -> list[EmbeddedSession]:
        """Gives each running session one token. Returns the sessions whose request ended."""
        for session in running:
            assert session.slot is not None
            if session.cached == 0:
                self._enter(session, session.slot)
            if len(session.ids) - session.cached > RIDE_ALONG:
                self._prefill(session.slot, session.ids[:-1], session.cached)
                session.cached = len(session.ids) - 1
        rows = self._compact(running)
        logits = self._decode(running, rows)
        return self._draw(running, logits)

    def _enter(self, session: EmbeddedSession, slot: int) -> None:
        """Fills a new session's slot with all of its prompt but the last id, which is fed next."""
        prompt = session.ids[: session.prompt_length - 1]
        shared = _common_prefix(self._prompt_ids, prompt)
        if shared < len(prompt):
            self._prefill(self._prompt_slot, prompt, shared)
            self._prompt_ids = prompt
        self._cache.copy(self._prompt_slot, slot, len(prompt))
        session.cached = len(prompt)

    def _prefill(self, slot: int, ids: list[int], start: int) -> None:
        """Computes keys and values of ids[start:], in chunks; ids[:start] are in the slot."""
        self._cache.ensure(len(ids) + ROW_MULTIPLE)
        for begin in range(start, len(ids), self._prefill_tokens):
            chunk = self._tensor(ids[begin : begin + self._prefill_tokens])
            self._decoder.prefill(chunk, begin, slot, self._cache)

    def _compact(self, running: list[EmbeddedSession]) -> int:
        """Rows to decode. When few of them would be in use, sessions move to lower slots."""
        top = 1 + max(s.slot for s in running if s.slot is not None)
        if _padded(top) > _padded(2 * len(running)):
            free = [i for i, owner in enumerate(self._owners) if owner is None]
            for session in sorted(running, key=lambda s: s.slot or 0, reverse=True):
                assert session.slot is not None
                if not free or free[0] > session.slot:
                    break
                target = free.pop(0)
                self._cache.copy(session.slot, target, session.cached)
                self._owners[session.slot], self._owners[target] = None, session
                session.slot = target
            top = 1 + max(s.slot for s in running if s.slot is not None)
        return _padded(top)

    def _decode(self, running: list[EmbeddedSession], rows: int) -> torch.Tensor:
        """Feeds each running session its next id. Returns logits (len(running), V)."""
        ids, positions = [0] * rows, [0] * rows
        for slot, owner in enumerate(self._owners[:rows]):
            # A row that does not run is computed all the same; it writes where its session
            # will write its next id, so nothing that counts is overwritten.
            positions[slot] = owner.cached if owner is not None else 0
        for session in running:
            assert session.slot is not None
            ids[session.slot] = session.ids[session.cached]
        self._cache.ensure(max(positions) + 1)
        first = running[0]
        assert first.slot is not None
        logits = self._decoder.decode(
            self._tensor(ids), self._tensor(positions), self._cache, _shared_blocks(running), first.slot
        )
        for session in running:
            session.cached += 1
        return logits[self._tensor([s.slot for s in running if s.slot is not None])]

    def _draw(self, running: list[EmbeddedSession], logits: torch.Tensor) -> list[EmbeddedSession]:
        """Draws an id for each session whose context has been fed to its end."""
        ready = [i for i, s in enumerate(running) if s.cached == len(s.ids) and s.request is not None]
        if not ready:
            return []
        sessions = [running[i] for i in ready]
        logits = logits[self._tensor(ready)]
        uniforms = torch.tensor([s.next_uniform() for s in sessions], dtype=torch.float64)
        temperatures = torch.tensor([s.request.temperature for s in sessions if s.request is not None])
        drawn, logprobs = draw(logits, uniforms.to(logits.device), temperatures.to(logits.device))
        self.tokens_sampled += len(sessions)
        broken = logprobs[~logprobs.isfinite()].tolist()
        if broken:
            raise SamplerFault(f"log-probability {broken[0]} for a sampled id: the weights are broken")
        finished = []
        for session, token, logprob in zip(sessions, drawn.tolist(), logprobs.tolist(), strict=True):
            if session.request is not None and session.receive(
                token, logprob, self._vocabulary.bytes_of(token), token in self._end_ids
            ):
                finished.append(session)
        return finished

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._decoder.device)


def _closed() -> SamplerFault:
    return SamplerFault("the session was closed while it sampled")


def _padded(rows: int) -> int:
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


def _shared_blocks(sessions: list[EmbeddedSession]) -> int:
    """Leading blocks of the cache that hold the same ids in all of these sessions: of prompts
    that begin alike (worked examples, a system message), or of one prompt's group."""
    first = sessions[0].ids
    for block in range(min(s.cached for s in sessions) // BLOCK):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        if any(s.ids[part] != first[part] for s in sessions):
            return block
    return min(s.cached for s in sessions) // BLOCK


def _common_prefix(a: list[int], b: list[int]) -> int:
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))
