"""The embedded sampler against transformers: the same log-probabilities, the same greedy ids,
nothing that depends on timing, and no coroutine that waits for ever."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny import ROPES, byte_level_tokenizer, randomise, smollm_shaped_model, tiny_model

from torl.errors import Bug, SamplerFault, TorlError, UserError
from torl.model import native
from torl.model.network import Network
from torl.samplers.base import SamplingParams, Seed
from torl.samplers.embedded.decoder import Decoder
from torl.samplers.embedded.engine import EmbeddedSampler
from torl.samplers.embedded.session import EmbeddedSession
from torl.tokens import Vocabulary
from torl.types import Completion, StopReason

VOCABULARY = Vocabulary(byte_level_tokenizer())
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=1.0)
LIMIT_S = 60

CONFIGURATIONS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"tied": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 12}),
    ("llama", {"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 16}),
    ("qwen2", {}),
    ("qwen2", {"tied": True, "num_hidden_layers": 3, "vocab_size": 333}),
    ("qwen3", {"tied": True}),
    ("qwen3", {"head_dim": 32, "attention_bias": True}),
    *[("llama", {"rope": rope}) for rope in ROPES if rope != "default"],
    ("qwen2", {"rope": "yarn"}),
    ("qwen3", {"rope": "linear"}),
]


def run(main: Coroutine[Any, Any, Any], limit_s: float = LIMIT_S) -> Any:
    """asyncio.run, under a time limit: a hang fails."""
    return asyncio.run(asyncio.wait_for(main, limit_s))


def sampler(model: Any, end_ids: Sequence[int] = (), **options: Any) -> EmbeddedSampler:
    return EmbeddedSampler(model, VOCABULARY, frozenset(end_ids), **options)


def ids_of(length: int, seed: int) -> list[int]:
    return [random.Random(seed * 7919 + n).randrange(300) for n in range(length)]


@torch.no_grad()
def full_logprobs(model: Any, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """transformers' log-probability of ids[1:], one full forward."""
    logits = model(torch.tensor([ids])).logits[0, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[1:, None]).squeeze(1)


Turns = Sequence[tuple[int, Sequence[int]]]
"""For each turn how many ids are sampled at most, and what is appended then."""


class Record:
    """One trajectory: its context, and where the sampled ids stand in it."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.ids = list(prompt)
        self.at: list[int] = []
        self.logprobs: list[float] = []

    def add(self, out: Completion) -> None:
        assert len(out.ids) == len(out.logprobs)
        self.at += range(len(self.ids), len(self.ids) + len(out.ids))
        self.ids += out.ids
        self.logprobs += out.logprobs

    def assert_equals_transformers(self, model: Any, temperature: float = 1.0) -> None:
        expected = full_logprobs(model, self.ids, temperature)[torch.tensor(self.at) - 1]
        assert torch.allclose(torch.tensor(self.logprobs), expected, rtol=0, atol=1e-4)

    @property
    def bits(self) -> tuple[list[int], list[float]]:
        return self.ids, self.logprobs


async def play(
    session: EmbeddedSession,
    turns: Turns,
    params: SamplingParams = DRAWN,
    tool: Callable[[], Awaitable[None]] | None = None,
) -> Record:
    record = Record(session.ids)
    for max_tokens, observation in turns:
        record.add(await session.sample([], max_tokens, params))
        if tool is not None:
            await tool()
        session.append(observation)
        record.ids += observation
    session.close()
    return record


SHORT, LONG = ids_of(5, seed=101), ids_of(70, seed=102)
TURNS: Turns = [(4, SHORT), (4, LONG), (3, ids_of(16, 103)), (3, ids_of(17, 104)), (3, [])]


@pytest.fixture(params=["compiled", "plain"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compiled kernels, where there is a compiler, and without."""
    if request.param == "plain":
        monkeypatch.setattr(native, "_library", lambda *_: None)


# The same numbers as transformers


def assert_logprobs_equal_a_full_forward(model: Any, turns: Turns, max_sequences: int) -> None:
    """Several turns with short and long observations; groups; prompts that share a prefix, one
    of a single id, one longer than a prefill chunk; a temperature."""
    shared = ids_of(30, seed=1)
    prompts = [shared, shared[:20] + ids_of(9, seed=2), [7], shared + ids_of(90, seed=3), shared[:8]]

    async def main() -> list[Record]:
        engine = sampler(model, max_sequences=max_sequences, prefill_tokens=50)
        sessions = [s for n, p in enumerate(prompts) for s in engine.open(p, [(n, 0), (n, 1)])]
        records = await asyncio.gather(*(play(s, turns, SamplingParams(0.8)) for s in sessions))
        await engine.close()
        return records

    records = run(main())
    for record in records:
        record.assert_equals_transformers(model, temperature=0.8)
    assert len({tuple(r.ids) for r in records}) == len(records)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("family", "fields"), CONFIGURATIONS, ids=str)
def test_logprobs_equal_a_full_forward(family: str, fields: dict[str, Any]) -> None:
    assert_logprobs_equal_a_full_forward(tiny_model(family, **fields), TURNS, max_sequences=16)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_greedy_equals_generate(family: str) -> None:
    model = tiny_model(family, seed=4)
    prompts = [ids_of(length, seed=length) for length in (1, 2, 17, 40)]

    async def main() -> list[Record]:
        engine = sampler(model)
        sessions = [engine.open(p, [(n,)])[0] for n, p in enumerate(prompts)]
        records = await asyncio.gather(*(play(s, [(20, [])], GREEDY) for s in sessions))
        await engine.close()
        return records

    for prompt, record in zip(prompts, run(main()), strict=True):
        theirs = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=20,
            do_sample=False,
            pad_token_id=0,
        )
        assert record.ids == theirs[0].tolist()
        assert record.logprobs == [0.0] * 20


def test_contexts_grow_past_the_first_cache() -> None:
    """By decoding, by an observation, and by a prompt; the context kept meanwhile is copied."""
    model = tiny_model("qwen3")
    turns: Turns = [(5, ids_of(490, 1)), (30, ids_of(700, 2)), (10, [])]

    async def main() -> list[Record]:
        engine = sampler(model, max_sequences=8)
        small = engine.open(ids_of(9, 3), [(0,)])[0]
        kept = Record(small.ids)
        kept.add(await small.sample([], 5, DRAWN))
        long = [*engine.open(ids_of(20, 4), [(1,), (2,)]), *engine.open(ids_of(1500, 5), [(3,)])]
        records = await asyncio.gather(*(play(s, turns) for s in long))
        kept.add(await small.sample([], 5, DRAWN))
        await engine.close()
        return [kept, *records]

    for record in run(main()):
        record.assert_equals_transformers(model)


def test_sampling_ends_at_end_ids_stop_strings_and_length() -> None:
    """A stop string may end inside an id; what was sampled stays; the end id is among it."""
    model = tiny_model("llama", scale=0.2)
    letters = [n for n in range(300) if VOCABULARY.bytes_of(n).isalpha()]

    async def main() -> dict[StopReason, Completion]:
        seen: dict[StopReason, Completion] = {}
        engine = sampler(model, end_ids=[17, 18, 19, 20])
        sessions = engine.open([1, 2, 3], [(n,) for n in range(40)])
        stop = [VOCABULARY.bytes_of(n).decode()[0] for n in letters[:6]] + ["never found"]
        outs = await asyncio.gather(*(s.sample(stop, 25, DRAWN) for s in sessions))
        for out in outs:
            text = VOCABULARY.decode(out.ids)
            before = VOCABULARY.decode(out.ids[:-1])
            seen[out.stop_reason] = out
            assert (out.stop_reason is StopReason.END) == (out.ids[-1] in {17, 18, 19, 20})
            assert not {17, 18, 19, 20} & set(out.ids[:-1])
            assert not any(s in before for s in stop)
            if out.stop_reason is StopReason.STOP:
                assert out.stop is not None
                assert out.stop in text
            if out.stop_reason is StopReason.LENGTH:
                assert len(out.ids) == 25
                assert not any(s in text for s in stop)
        await engine.close()
        return seen

    assert set(run(main())) == {StopReason.END, StopReason.STOP, StopReason.LENGTH}


def test_a_trajectory_goes_on_behind_an_end_id() -> None:
    model = tiny_model("llama", scale=0.2)
    ends = range(0, 300, 5)

    async def main() -> Record:
        engine = sampler(model, end_ids=ends)
        record = await play(engine.open([4, 5], [(0,)])[0], [(30, SHORT), (30, LONG), (30, [])])
        await engine.close()
        return record

    record = run(main())
    assert sum(record.ids[n] in ends for n in record.at) == 3
    record.assert_equals_transformers(model)


def test_nothing_computed_before_new_weights_is_used_again() -> None:
    model = tiny_model("llama")
    prompt = ids_of(100, seed=1)

    async def main() -> None:
        engine = sampler(model)
        for version in range(3):
            randomise(model, seed=version)
            engine.set_weights(version)
            session = engine.open(prompt, [(version,)])[0]
            out = await session.sample([], 5, DRAWN)
            assert out.version == version
            record = Record(prompt)
            record.add(out)
            record.assert_equals_transformers(model)
            with pytest.raises(SamplerFault, match="being sampled"):
                engine.set_weights(version + 1)
            session.close()
        await engine.close()

    run(main())


def test_a_prompt_computed_while_the_weights_change_is_not_used_again() -> None:
    """A pass for sessions that were given up may still run when the learner says so."""
    model = tiny_model("llama")
    prompt = ids_of(60, seed=1)

    async def main() -> Record:
        engine = sampler(model)
        given_up = [asyncio.create_task(play(s, [(500, [])])) for s in engine.open(prompt, [(0,), (1,)])]
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the first pass runs
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        engine.set_weights(1)
        randomise(model, seed=1)
        engine.set_weights(2)
        record = await play(engine.open(prompt, [(2,)])[0], [(5, [])])
        await engine.close()
        return record

    run(main()).assert_equals_transformers(model)


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "llama, qwen2, qwen3 have a fast path, not 'gpt2'"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rotary scaling 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rotary scaling 'longrope'"),
        ({"hidden_act": "gelu"}, "not 'gelu'"),
    ],
    ids=str,
)
def test_a_network_refuses_what_it_would_compute_wrongly(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    model = tiny_model("qwen2")
    for name, value in change.items():
        owner = type(model.config) if name == "model_type" else model.config
        monkeypatch.setattr(owner, name, value)
    with pytest.raises(UserError, match=message):
        Network(model)


def test_a_network_refuses_adapters() -> None:
    class Adapted(torch.nn.Linear):
        """Stands for a layer that computes more than its weight says."""

    model = tiny_model("llama")
    model.model.layers[1].mlp.up_proj = Adapted(48, 80, bias=False)
    with pytest.raises(UserError, match="adapters"):
        Network(model)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(UserError, match="empty prompt"):
        sampler(tiny_model()).open([], [(0,)])


# Independence: the same bits whoever the neighbours are


def delays(seed: int) -> Callable[[], Awaitable[None]]:
    source = random.Random(seed)
    return lambda: asyncio.sleep(source.choice([0, 0, 0.001, 0.01, 0.03]))


async def crowd(
    model: Any, prompts: list[list[int]], turns: Turns, order: int, max_sequences: int, **options: Any
) -> dict[Seed, Record]:
    """Every prompt's group of 4, opened in a random order, with random delays of their tools."""
    engine = sampler(model, max_sequences=max_sequences, **options)
    source = random.Random(order)
    numbered = list(enumerate(prompts))
    source.shuffle(numbered)
    seeds = [(n, g) for n, _ in numbered for g in range(4)]
    sessions = [s for n, p in numbered for s in engine.open(p, [(n, g) for g in range(4)])]
    jobs = [play(s, turns, DRAWN, delays(order + k)) for k, s in enumerate(sessions)]
    records = await asyncio.gather(*jobs)
    await engine.close()
    return dict(zip(seeds, records, strict=True))


async def alone(model: Any, prompt: list[int], turns: Turns, seed: Seed) -> Record:
    engine = sampler(model, max_sequences=8)
    record = await play(engine.open(prompt, [seed])[0], turns)
    await engine.close()
    return record


def assert_independent(model: Any, prompts: list[list[int]], turns: Turns, sizes: list[int]) -> None:
    crowds = [run(crowd(model, prompts, turns, 10 * n, size), 300) for n, size in enumerate(sizes)]
    for seed, record in crowds[0].items():
        for other in crowds[1:]:
            assert other[seed].bits == record.bits
    for n in range(len(prompts)):
        assert run(alone(model, prompts[n], turns, (n, 1))).bits == crowds[0][n, 1].bits


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {}),
        ("qwen3", {"tied": True}),
        # Six and four query heads a key head: kernels sum these over lengths in blocks.
        ("qwen2", {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 1}),
        ("llama", {"num_attention_heads": 8, "head_dim": 64}),
    ],
    ids=str,
)
def test_a_trajectory_is_the_same_in_any_company(
    family: str, fields: dict[str, Any], dtype: torch.dtype
) -> None:
    """More sessions than slots; contexts of very different lengths, whose padding differs."""
    model = tiny_model(family, dtype=dtype, **fields)
    shared = ids_of(140, seed=9)
    prompts = [shared, shared[:100] + ids_of(40, 1), ids_of(1, 2), ids_of(30, 3), shared[:20]]
    turns: Turns = [(5, SHORT), (4, LONG), (5, [])]
    assert_independent(model, prompts, turns, [8, 16, 64])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_trajectory_is_the_same_in_any_company_at_smollm2_shapes(dtype: torch.dtype) -> None:
    shared = ids_of(300, seed=9)
    prompts = [
        shared,
        shared[:270] + ids_of(200, 1),
        ids_of(5, 2),
        ids_of(130, 3),
        shared[:64],
        ids_of(700, 4),
    ]
    turns: Turns = [(20, SHORT), (20, LONG), (20, [])]
    assert_independent(smollm_shaped_model(dtype), prompts, turns, [8, 16, 64])


def feed(decoder: Decoder, slot: int, ids: list[int], start: int = 0) -> torch.Tensor:
    """Puts ids behind what the slot has. Returns the logits that follow the last."""
    assert decoder.cache.reserve(slot, start + len(ids))
    positions = list(range(start, start + len(ids)))
    return decoder.forward(ids, [slot] * len(ids), positions, [len(ids) - 1])[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_do_not_depend_on_their_number_or_on_longer_ones_at_smollm2_shapes(dtype: torch.dtype) -> None:
    """What independence rests on, at the shapes at which kernels choose their blocks: the same
    logits among 1, 8, 24, 64 and 300 rows, alone and beside contexts that are longer."""
    network = Network(smollm_shaped_model(dtype))
    prompt = ids_of(150, seed=1)
    results = []
    for rows, longest in [(1, 0), (8, 300), (24, 500), (64, 1000), (300, 300)]:
        decoder = Decoder(network, slots=65, cache_bytes=2**28)
        feed(decoder, 0, prompt)
        feed(decoder, 1, ids_of(longest + 300, seed=2))
        slots, positions = [0] + [1] * (rows - 1), [150, *range(longest, longest + rows - 1)]
        decoder.cache.reserve(0, 151)
        results.append(decoder.forward([7] + [9] * (rows - 1), slots, positions, range(rows))[0])
    for result in results[1:]:
        assert torch.equal(result, results[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", ["smollm2", "qwen2.5-1.5b"])
def test_where_a_prompt_is_cut_changes_no_bit(shape: str, dtype: torch.dtype) -> None:
    """A prompt may go on from any prefix that it shares with the one before it; what was decoded
    may be computed again in one piece."""
    if shape == "smollm2":
        model = smollm_shaped_model(dtype, vocab_size=300)
    else:
        model = tiny_model("qwen2", dtype=dtype, hidden_size=1536, num_attention_heads=12)
    network, ids = Network(model), ids_of(400, seed=1)

    def logits(*cuts: int) -> torch.Tensor:
        decoder = Decoder(network, slots=1, cache_bytes=2**28)
        parts = [feed(decoder, 0, ids[a:b], a) for a, b in itertools.pairwise((0, *cuts, len(ids)))]
        return parts[-1]

    whole = logits()
    for cuts in [(8,), (256,), (300,), (30, 77, 200, 391), tuple(range(360, 400))]:
        assert torch.equal(whole, logits(*cuts)), cuts


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_full_cache_changes_no_bit(dtype: torch.dtype) -> None:
    """Room for little more than the longest sequence: contexts give up their blocks again and again."""
    model = tiny_model("qwen3", dtype=dtype)
    shared = ids_of(100, seed=1)
    prompts = [shared, shared[:70] + ids_of(80, 2), ids_of(3, 3), ids_of(200, 4)]
    turns: Turns = [(40, LONG), (70, SHORT), (30, [])]
    layer_bytes = 2 * 2 * 8 * 64 * dtype.itemsize  # keys and values of 2 heads of 8, 64 tokens
    roomy = run(crowd(model, prompts, turns, 0, 16))
    for blocks in (8, 12, 20):
        cache_gb = blocks * 2 * layer_bytes / 2**30
        tight = run(crowd(model, prompts, turns, blocks, 16, cache_gb=cache_gb))
        assert {seed: r.bits for seed, r in tight.items()} == {seed: r.bits for seed, r in roomy.items()}


def test_a_sequence_that_no_cache_could_hold_is_refused() -> None:
    async def main() -> None:
        engine = sampler(tiny_model(), max_sequences=8, cache_gb=3 * 16384 / 2**30)
        with pytest.raises(
            UserError, match=r"holds 192 tokens, .* of 129 beside .*; raise sampler.cache_gb"
        ):
            await engine.open([1, 2], [(0,)])[0].sample([], 200, DRAWN)
        await engine.close()

    run(main())


# Lifecycle: nothing hangs, nothing leaks


def slots(engine: EmbeddedSampler) -> int:
    used = sum(map(len, engine._decoder.cache._held)) - sum(
        len(engine._decoder.cache._held[p.slot]) for p in engine._prompts if p.slot is not None
    )
    assert bool(used) == bool(engine._live)
    return len(engine._live)


def test_slots_are_taken_at_the_first_sample_and_given_back() -> None:
    async def main() -> None:
        engine = sampler(tiny_model(), max_sequences=8)
        for batch in range(5):  # more sessions than there are slots, again and again
            sessions = engine.open([1, 2, 3], [(batch, n) for n in range(20)])
            assert slots(engine) == 0
            outs = await asyncio.gather(*(play(s, [(4, SHORT), (4, [])]) for s in sessions))
            assert len(outs) == 20
            await engine.open([1], [(0,)])[0].sample([], 0, DRAWN)  # asks for nothing
            engine._admit()
            assert slots(engine) == 0
        assert engine.tokens_sampled == 5 * 20 * 8
        await engine.close()

    run(main())


def test_many_groups_that_wait_at_once_share_few_slots() -> None:
    """One session of each group comes first, so every group's prompt is still wanted while others are
    computed."""
    model = tiny_model()

    async def main() -> list[Record]:
        engine = sampler(model, max_sequences=3)
        groups = [engine.open(ids_of(20 + n, seed=n), [(n, g) for g in range(3)]) for n in range(12)]
        jobs = [play(group[g], [(3, SHORT), (3, [])]) for g in range(3) for group in groups]
        records = await asyncio.gather(*jobs)
        await engine.close()
        return records

    for record in run(main()):
        record.assert_equals_transformers(model)


def test_who_waits_for_a_slot_gets_it_when_an_idle_session_closes() -> None:
    """All slots are held by sessions whose tools run, so that no pass is made; then one ends."""

    async def main() -> None:
        engine = sampler(tiny_model(), max_sequences=8)
        holders = engine.open([1, 2], [(n,) for n in range(8)])
        await asyncio.gather(*(s.sample([], 2, DRAWN) for s in holders))
        late = asyncio.create_task(engine.open([3], [(9,)])[0].sample([], 2, DRAWN))
        await asyncio.sleep(0.05)
        assert not late.done()
        holders[3].close()
        assert len((await late).ids) == 2
        await engine.close()

    run(main())


def test_closing_a_session_while_it_samples_ends_its_wait_alone() -> None:
    model = tiny_model()

    async def main() -> None:
        engine = sampler(model, max_sequences=8)
        doomed, waiting, *others = engine.open([1, 2], [(n,) for n in range(10)])
        tasks = [asyncio.create_task(play(s, [(150, [])])) for s in (*others, doomed, waiting)]
        await asyncio.sleep(0.02)
        assert doomed.slot is None or not tasks[-2].done()
        doomed.close()
        doomed.close()
        waiting.close()
        for task in tasks[-2:]:
            with pytest.raises(SamplerFault, match="closed"):
                await task
        with pytest.raises(SamplerFault, match="closed"):
            await doomed.sample([], 1, DRAWN)
        for record in await asyncio.gather(*tasks[:-2]):
            assert len(record.at) == 150
            record.assert_equals_transformers(model)
        engine._admit()
        assert slots(engine) == 0
        await engine.close()

    run(main())


@pytest.mark.parametrize("round_", range(3))
def test_closing_at_random_moments_disturbs_nobody(round_: int) -> None:
    """Passes run on a thread of their own: a request must not vanish under one."""
    model = tiny_model()

    async def main() -> None:
        engine = sampler(model, max_sequences=16)
        source = random.Random(round_)
        sessions = engine.open([1, 2], [(n,) for n in range(40)])
        tasks = [asyncio.create_task(play(s, [(30, SHORT), (30, [])])) for s in sessions]
        for n in source.sample(range(40), 20):
            await asyncio.sleep(source.random() * 0.004)
            if source.random() < 0.5:
                sessions[n].close()
            else:
                tasks[n].cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Record):
                outcome.assert_equals_transformers(model)
            else:
                assert isinstance(outcome, asyncio.CancelledError | SamplerFault), outcome
        await engine.close()

    run(main())


def test_a_cancelled_coroutine_gives_its_slot_back() -> None:
    async def main() -> None:
        engine = sampler(tiny_model(), max_sequences=8)
        session, *_ = engine.open([1, 2], [(0,)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.sample([], 10**6, DRAWN), 0.05)
        with pytest.raises(SamplerFault, match="closed"):
            await session.sample([], 1, DRAWN)
        assert engine._task is not None
        await engine._task  # nothing is left to do
        assert slots(engine) == 0
        await engine.close()

    run(main())


def test_an_error_in_a_pass_reaches_everyone_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with a slot, those without, and those whose tool runs: their cache is in doubt.
    The sampler itself goes on."""
    model = tiny_model()

    async def main() -> None:
        engine = sampler(model, max_sequences=8)
        idle, *others = engine.open(ids_of(40, 1), [(n,) for n in range(12)])
        await idle.sample([], 3, DRAWN)
        with monkeypatch.context() as patch:
            patch.setattr(engine._decoder, "forward", lambda *_: 1 / 0)
            outcomes = await asyncio.gather(
                *(s.sample([], 3, DRAWN) for s in others), return_exceptions=True
            )
        assert [type(o) for o in outcomes] == [ZeroDivisionError] * 11
        with pytest.raises(SamplerFault, match="closed"):
            await idle.sample([], 3, DRAWN)
        record = await play(engine.open(ids_of(40, 1), [(0,)])[0], [(5, LONG), (5, [])])
        record.assert_equals_transformers(model)
        await engine.close()

    run(main())


@pytest.mark.parametrize("params", [DRAWN, GREEDY], ids=str)
def test_broken_weights_are_named_and_mended_ones_work(params: SamplingParams) -> None:
    """NaN times 0 is NaN, so nothing of it may stay behind in the cache."""
    model = tiny_model()

    async def main() -> None:
        engine = sampler(model)
        model.model.layers[0].self_attn.v_proj.weight.data[3, 3] = float("nan")
        session = engine.open(ids_of(40, 1), [(0,)])[0]
        with pytest.raises(SamplerFault, match="log-probability nan for a sampled id"):
            await session.sample([], 3, params)
        randomise(model, seed=1)
        engine.set_weights(1)
        record = await play(engine.open([5], [(0,)])[0], [(40, [])])
        record.assert_equals_transformers(model)
        await engine.close()

    run(main())


def test_closing_the_sampler_ends_every_wait() -> None:
    async def main() -> None:
        engine = sampler(tiny_model(), max_sequences=8)
        sessions = engine.open([1, 2], [(n,) for n in range(12)])
        tasks = [asyncio.create_task(s.sample([], 10**6, DRAWN)) for s in sessions]
        await asyncio.sleep(0.02)
        await engine.close()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(o, SamplerFault) for o in outcomes), outcomes

    run(main())


def test_a_sampler_outlives_an_event_loop_that_was_stopped() -> None:
    """Ctrl-C in the middle of a rollout; then the next asyncio.run."""
    model = tiny_model()
    engine = sampler(model, max_sequences=8)

    async def interrupted() -> None:
        sessions = engine.open([1, 2], [(n,) for n in range(12)])
        tasks = [asyncio.create_task(s.sample([], 10**6, DRAWN)) for s in sessions]
        await asyncio.sleep(0.02)
        assert not any(t.done() for t in tasks)

    async def again() -> Record:
        record = await play(engine.open(ids_of(20, 1), [(0,)])[0], [(5, LONG), (5, [])])
        await engine.close()
        return record

    run(interrupted())
    run(again()).assert_equals_transformers(model)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(1.0, top_k=3), 3),
        (SamplingParams(0.7, top_p=0.5), None),
        (SamplingParams(1.0, min_p=0.3), None),
        (SamplingParams(1.5, top_k=20, top_p=0.9, min_p=0.05), None),
    ],
    ids=str,
)
def test_a_restricted_distribution_is_the_one_that_is_drawn_from(
    params: SamplingParams, kept: int | None
) -> None:
    """By the definition, with NumPy: the ids that may be drawn, and their log-probabilities."""
    model = tiny_model("llama", scale=3.0)
    prompt = ids_of(20, 1)

    async def main() -> list[Record]:
        engine = sampler(model, max_sequences=64)
        sessions = engine.open(prompt, [(n,) for n in range(300)])
        records = await asyncio.gather(*(play(s, [(1, [])], params) for s in sessions))
        await engine.close()
        return records

    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1].double().numpy() / params.temperature
    p = np.exp(logits - logits.max())
    order = np.argsort(-p)
    if params.top_k:
        p[order[params.top_k :]] = 0
    p /= p.sum()
    if params.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= params.top_p]] = 0
    p[p < params.min_p * p.max()] = 0
    p /= p.sum()
    assert kept is None or (p > 0).sum() == kept
    seen = set()
    for record in run(main()):
        seen.add(record.ids[-1])
        assert record.logprobs[0] == pytest.approx(np.log(p[record.ids[-1]]), abs=1e-4)
    assert len(seen) >= min(3, (p > 0).sum())


def test_a_session_does_one_thing_at_a_time() -> None:
    async def main() -> None:
        engine = sampler(tiny_model())
        session = engine.open([1], [(0,)])[0]
        first = asyncio.create_task(session.sample([], 20, DRAWN))
        await asyncio.sleep(0)
        with pytest.raises(Bug, match="while it samples"):
            await session.sample([], 1, DRAWN)
        with pytest.raises(Bug, match="while it samples"):
            session.append([1])
        assert len((await first).ids) == 20
        await engine.close()

    run(main())


def test_faults_of_the_sampler_are_faults_of_the_world() -> None:
    assert issubclass(SamplerFault, TorlError)
