"""What the tests of the rollout share: a sampler that is watched, odd vocabularies, plain tools."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tiny import SPECIAL, byte_level_tokenizer
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from torl import config
from torl.rollout.agent import Agent, run_episode
from torl.samplers.base import SamplingParams, Seed
from torl.samplers.scripted import ScriptedSampler, ScriptedSession
from torl.tokens import Vocabulary
from torl.tools.base import Tool, ToolContext
from torl.types import Completion, Task, ToolResult, Trajectory

T = TypeVar("T")
TASK = Task("add/7", "What is 12 * 31?", "372")
CALL = "Compute.\n```python\nprint(12 * 31)\n```\n```output"


def run(work: Coroutine[Any, Any, T], limit_s: float = 20.0) -> T:
    """asyncio.run that fails instead of hanging."""
    return asyncio.run(asyncio.wait_for(work, limit_s))


@dataclass
class WatchedSession(ScriptedSession):
    """Keeps what it was asked and what it gave. Each log-probability is a different number."""

    asked: list[tuple[list[str], int, list[int]]] = field(default_factory=list)
    given: list[Completion] = field(default_factory=list)

    async def sample(self, stop: list[str], max_tokens: int, params: SamplingParams) -> Completion:
        self.asked.append((list(stop), max_tokens, list(self.context)))
        completion = await super().sample(stop, max_tokens, params)
        start = len(self.context) - len(completion.ids)
        completion.logprobs = [-(start + n + 1) / 64 for n in range(len(completion.ids))]
        self.given.append(completion)
        return completion


Turns = Callable[[Seed, int], Sequence[int]]
"""From a session's seed and the number of its turn to the ids that it would sample."""


@dataclass
class WatchedSampler(ScriptedSampler):
    def open(self, prompt_ids: Sequence[int], seeds: Sequence[Seed]) -> list[Any]:
        opened = [WatchedSession(self, seed, list(prompt_ids)) for seed in seeds]
        self.sessions += opened
        return opened


def watched(vocabulary: Vocabulary, turns: Turns, end_ids: frozenset[int] = frozenset()) -> WatchedSampler:
    def script(seed: Seed, context: Sequence[int]) -> Sequence[int]:
        session: Any = next(s for s in sampler.sessions if s.context is context)
        return turns(seed, len(session.asked) - 1)

    sampler = WatchedSampler(vocabulary, script, end_ids, version=3)
    return sampler


@dataclass
class Echo:
    """A tool that answers with what ``say`` makes of the call's number. Keeps its calls."""

    say: Callable[[int], ToolResult | str | BaseException] = lambda n: f"answer {n}\n"
    name: str = "python"
    heard: list[tuple[str, ToolContext]] = field(default_factory=list)

    async def __call__(self, text: str, context: ToolContext) -> ToolResult:
        self.heard.append((text, context))
        await asyncio.sleep(0)
        answer = self.say(context.call_number)
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, ToolResult) else ToolResult(answer)

    async def close(self) -> None:
        pass


@dataclass
class Played:
    """A trajectory and the session that it was played in."""

    trajectory: Trajectory
    session: WatchedSession

    @property
    def trained(self) -> list[int]:
        t = self.trajectory
        return [i for i, mask in zip(t.ids, t.loss_mask, strict=True) if mask]


def agent_of(sampler: Any, tools: Sequence[Tool] = (), vocabulary: Any = None, **limits: Any) -> Agent:
    vocabulary = vocabulary or sampler.vocabulary

    def prompt(task: Task) -> list[int]:
        return vocabulary.encode(task.problem)

    return Agent(sampler, vocabulary, prompt, config.Rollout(**limits), {t.name: t for t in tools})


def play(
    turns: Sequence[str | Sequence[int]],
    tools: Sequence[Tool] = (),
    vocabulary: Vocabulary | None = None,
    end_ids: frozenset[int] = frozenset(),
    **limits: Any,
) -> Played:
    """Plays one episode in which the policy would sample ``turns``, texts or ids."""
    words = vocabulary or Vocabulary(byte_level_tokenizer())
    ids = [words.encode(turn) if isinstance(turn, str) else list(turn) for turn in turns]
    sampler = watched(words, lambda _, n: ids[n] if n < len(ids) else [], end_ids)
    agent = agent_of(sampler, tools, **limits)
    prompt = agent.encode_prompt(TASK)
    session = sampler.open(prompt, [(0,)])[0]
    return Played(run(run_episode(agent, TASK, 3, session, prompt)), session)


def piece_tokenizer(pieces: Sequence[bytes]) -> tuple[Any, list[int]]:
    """A byte-level tokenizer whose vocabulary holds ``pieces`` beside the bytes and the special
    tokens, and the pieces' ids. It never encodes to a piece, so sampling one is not canonical."""
    alphabet = _alphabet()
    names = list(dict.fromkeys("".join(alphabet[b] for b in piece) for piece in pieces if len(piece) > 1))
    words = [*sorted(alphabet.values()), *names]
    backend = Tokenizer(BPE(vocab={word: n for n, word in enumerate(words)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    return tokenizer, list(range(256, 256 + len(names)))


def _alphabet() -> dict[int, str]:
    """Each byte's stand-in, read off the bytes that Vocabulary gives."""
    vocabulary = Vocabulary(byte_level_tokenizer(262))
    names = vocabulary.tokenizer.convert_ids_to_tokens(list(range(vocabulary.size)))
    single = {vocabulary.bytes_of(n): name for n, name in enumerate(names) if len(name) == 1}
    return {b: single[bytes([b])] for b in range(256)}
