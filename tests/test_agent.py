"""One episode: ids, masks, budgets and calls, for any vocabulary, policy and tool."""

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollout_kit import CALL, TASK, Echo, Played, agent_of, piece_tokenizer, play, run, watched
from tiny import byte_level_tokenizer, sentencepiece_tokenizer, tiny_model

from torl.errors import Bug, ModelMistake, SandboxFault, WorldFault
from torl.rollout import protocol
from torl.rollout.agent import run_episode
from torl.rollout.ids import observation_ids, under
from torl.rollout.protocol import segments
from torl.samplers.embedded.engine import EmbeddedSampler
from torl.tokens import Vocabulary
from torl.tools import ToolContext, function_tool
from torl.types import StopReason, ToolResult, Trajectory

BYTES = Vocabulary(byte_level_tokenizer())
PIECE = Vocabulary(sentencepiece_tokenizer())
CANONICAL = [BYTES, Vocabulary(byte_level_tokenizer(nfc=True)), PIECE]
END = BYTES.tokenizer.eos_token_id
STOPS = Echo(lambda _: ToolResult("done", stop=True))


def observations(played: Played) -> list[str]:
    return [turn.observation for turn in played.trajectory.turns if turn.observation]


# Any vocabulary, any policy, any tool.

FENCES = [
    b"```",
    b"``",
    b"`out",
    b"put",
    b"output",
    b"put\n",
    b"puts",
    b"put\n```\n",
    b"put\n5\n",
    b"```output",
]
WHOLE = [b"\n```", b"\n```python\n", b"python", b"print(1)\n", b"\n```\n```output\n", b" output\n7\n", b"x"]
PARTS = ["é".encode(), "🙂".encode(), b"\xf0\x9f", b"\x99\x82", b"\xff", b"The answer", b"<|im_end|>"]
PIECES = st.sampled_from([*FENCES, *WHOLE, *PARTS])
SAID = st.lists(
    st.sampled_from(
        ["372\n", "", "a b", "```\n", "\n```output\n", "<|im_end|>", "é🙂", "\ud800", "\x00", "\ufffd"]
    )
    | st.text(max_size=4),
    max_size=40,
).map("".join)


@dataclass
class Case:
    """A vocabulary, what the policy would sample in each turn, what the tool says, and limits."""

    vocabulary: Vocabulary
    turns: list[list[int]]
    said: list[str]
    limits: dict[str, Any]
    end_ids: frozenset[int] = field(default_factory=frozenset)


SPOKEN = [
    CALL,
    CALL,
    CALL,
    "\n```output",
    "``` output\n5\n```\n",
    "```output\n5🙂",
    "```python\ny\n",
    "\\boxed{5}",
]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    tokenizer, extra = piece_tokenizer(draw(st.lists(PIECES, min_size=3, max_size=16)))
    vocabulary = draw(st.sampled_from([Vocabulary(tokenizer), Vocabulary(tokenizer), BYTES, PIECE]))
    pieces = {vocabulary.bytes_of(n): n for n in extra} if vocabulary.tokenizer is tokenizer else {}
    special = sorted(vocabulary.tokenizer.added_tokens_decoder)
    one = st.integers(0, vocabulary.size + 2) | st.sampled_from([*special, *pieces.values(), *range(9)])

    def spelled(text: str) -> list[int]:
        """One of the ways to write a text, mostly not the tokenizer's."""
        raw, ids = text.encode(), []
        while raw and pieces:
            fits = [p for p in pieces if raw.startswith(p)]
            piece = draw(st.sampled_from([*fits, raw[:1]]))
            ids.append(pieces[piece] if piece in pieces else vocabulary.encode(chr(piece[0]))[0])
            raw = raw[len(piece) :]
        return ids or vocabulary.encode(text)

    def turn() -> list[int]:
        ids = draw(st.lists(one, max_size=3))
        for text in draw(st.lists(st.sampled_from(SPOKEN), min_size=1, max_size=3)):
            ids += spelled(text) if text.isascii() else vocabulary.encode(text)
        return ids + draw(st.lists(one, max_size=2))

    limits = {
        "max_tool_calls": draw(st.integers(0, 3)),
        "max_completion_tokens": draw(st.sampled_from([1000, 1000, 400]) | st.integers(1, 120)),
        "max_observation_tokens": draw(st.integers(1, 40) | st.just(200)),
        "past_budget": draw(st.sampled_from(["tell", "ignore"])),
        "max_requests_past_budget": draw(st.integers(0, 2)),
        "stop": draw(st.sampled_from([[], [], ["\nUser:"], ["boxed"]])),
    }
    ends = frozenset(draw(st.sampled_from([[], special[-1:], special])))
    turns = [turn() for _ in range(draw(st.integers(1, 6)))]
    return Case(vocabulary, turns, draw(st.lists(SAID, max_size=4)), limits, ends)


@given(case=cases(), tools=st.booleans())
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_episode_keeps_the_invariants(case: Case, tools: bool) -> None:
    echo = Echo(lambda n: case.said[n] if n < len(case.said) else "")
    tooled = [echo] if tools else []
    played = play(case.turns, tooled, case.vocabulary, case.end_ids, **case.limits)
    check_ids(case, played)
    check_calls(case, played, echo if tools else None)


def check_ids(case: Case, played: Played) -> None:
    t, session, budget = played.trajectory, played.session, case.limits["max_completion_tokens"]
    assert len(t.ids) == len(t.loss_mask) == len(t.sampled) == len(t.sampler_logprobs) == len(t.versions)
    assert all(mask <= sampled for mask, sampled in zip(t.loss_mask, t.sampled, strict=True))
    assert session.context == t.prompt_ids + t.ids
    assert len(t.ids) <= budget
    assert len(session.asked) == len(session.given) == len(t.turns)
    position, special = 0, set(case.vocabulary.tokenizer.added_tokens_decoder)
    for turn, (_, room, context), given_ in zip(t.turns, session.asked, session.given, strict=True):
        assert context == t.prompt_ids + t.ids[:position]  # earlier ids, as they were sampled
        assert room == budget - position
        assert turn.start == position
        assert t.ids[turn.start : turn.end] == given_.ids
        assert t.sampler_logprobs[turn.start : turn.end] == given_.logprobs
        seen = slice(turn.end, turn.observation_end)
        n = turn.observation_end - turn.end
        assert t.loss_mask[seen] == t.sampled[seen] == [0] * n
        assert t.sampler_logprobs[seen] == [0.0] * n
        assert t.versions[seen] == [-1] * n
        assert t.sampled[turn.start : turn.end] == [1] * len(given_.ids)
        assert t.versions[turn.start : turn.end] == [3] * len(given_.ids)
        assert n <= case.limits["max_observation_tokens"]
        assert not special & set(t.ids[seen])
        assert turn.observation == case.vocabulary.decode(t.ids[seen])
        spans = protocol.invented_outputs(turn.text, answered=turn.result is not None)
        masked = t.loss_mask[turn.start : turn.end].count(0)
        assert masked == len(under(case.vocabulary, given_.ids, spans))
        position = turn.observation_end
    assert position == len(t.ids)


def check_calls(case: Case, played: Played, tool: Echo | None) -> None:
    t, limits = played.trajectory, case.limits
    c = limits["max_tool_calls"] if tool else 0
    executed = [result for result in t.calls if result.executed]
    assert len(executed) <= c
    assert len(executed) == (len(tool.heard) if tool else 0)
    refused = [result for result in t.calls if result.status == "no_calls_left"]
    told = bool(tool) and limits["past_budget"] == "tell"
    assert len(refused) <= (limits["max_requests_past_budget"] + 1 if told else 0)
    last = t.turns[-1]
    if last.result is None:
        assert t.stop_reason == last.stop_reason
    elif last.result.stop:
        assert t.stop_reason is StopReason.TOOL
    else:
        assert t.stop_reason is StopReason.LENGTH
        assert len(t.ids) == limits["max_completion_tokens"]
    assert t.truncated == (t.stop_reason is StopReason.LENGTH)
    for turn in t.turns[:-1]:  # an episode goes on behind an answered marker, and nowhere else
        assert turn.stop_reason is StopReason.STOP
        assert turn.result is not None
        assert protocol.MARKER in turn.text


# Faults of the reference code and of peers, one by one.


@pytest.mark.parametrize("vocabulary", CANONICAL)
def test_golden_mask_of_two_calls(vocabulary: Vocabulary) -> None:
    """Fault 2 of the reference: it trained on the observation of every call but the first."""
    end = vocabulary.tokenizer.eos_token_id
    last = [*vocabulary.encode("So \\boxed{372}."), end]
    played = play([CALL, CALL, last], [Echo()], vocabulary, frozenset([end]), max_tool_calls=2)
    t = played.trajectory
    text, masks = "", []
    for turn, observation in [(CALL, "\nanswer 0\n```\n"), (CALL, "\nanswer 1\n```\n")]:
        text += turn + observation
        masks += [1] * len(vocabulary.encode(turn)) + [0] * len(vocabulary.encode(observation))
    assert t.loss_mask == masks + [1] * len(last)
    assert t.text == text + vocabulary.decode(last)
    assert played.trained == vocabulary.encode(CALL) * 2 + last
    assert t.ids[-1] == end  # the end of turn trains
    assert t.stop_reason is StopReason.END
    assert not t.truncated


def test_ids_that_are_not_canonical_are_kept() -> None:
    """trl#5224: two ways to spell a text; what trains is what was sampled."""
    spelled = [i for c in CALL.encode() for i in [BYTES.encode(chr(c))[0]]]
    assert spelled != BYTES.encode(CALL)
    t = play([spelled, "\\boxed{372}"], [Echo()]).trajectory
    assert t.ids[: len(spelled)] == spelled
    assert t.turns[0].call is not None
    assert t.turns[0].call.text == "print(12 * 31)\n"


def test_text_around_a_call_is_kept() -> None:
    """verl#3960: the history was rebuilt from parsed messages."""
    before, behind = "Let me see.\n", "\nWhat comes out? ```output"
    turn = f"{before}```python\nx\n```{behind}"
    played = play([turn, "\\boxed{1}"], [Echo()])
    assert played.session.asked[1][2][len(played.trajectory.prompt_ids) :][: len(BYTES.encode(turn))] == (
        BYTES.encode(turn)
    )


def test_special_ids_in_the_middle_survive() -> None:
    special = BYTES.tokenizer.convert_tokens_to_ids("<|im_start|>")
    turn = [*BYTES.encode("a"), special, *BYTES.encode("b"), END]
    played = play([turn], [Echo()], end_ids=frozenset([END]))
    assert played.trajectory.ids == turn
    assert played.trained == turn
    assert played.trajectory.turns[0].text == "a<|im_start|>b<|im_end|>"


def test_marker_that_ends_inside_a_token() -> None:
    tokenizer, (put,) = piece_tokenizer([b"put\nfoo"])
    vocabulary = Vocabulary(tokenizer)
    turn = [*vocabulary.encode("```python\nx\n```\n```out"), put]
    played = play([turn, "y"], [Echo()], vocabulary)
    assert played.trajectory.text == "```python\nx\n```\n```output\nfoo\nanswer 0\n```\ny"
    assert played.trained == [*turn, *vocabulary.encode("y")]


def test_nothing_is_lost_when_nobody_calls() -> None:
    """Fault 1 of the reference: the text of a pass without calls was dropped."""
    assert play(["\\boxed{372}"], [Echo()]).trajectory.policy_text == "\\boxed{372}"


def test_only_the_current_turns_code_runs() -> None:
    echo = Echo()
    t = play([CALL, "I see. ```output", "z"], [echo], max_tool_calls=3).trajectory
    assert [result.status for result in t.calls] == ["ok", "malformed"]
    assert len(echo.heard) == 1


def test_good_output_that_says_error_is_shown_whole() -> None:
    """Faults 4 to 7 of the reference lie in what it made of the output: ours is shown as it is."""
    shown = "Traceback: none\nError rate: 0.5\n"
    assert observations(play([CALL, "x"], [Echo(lambda _: shown)])) == [f"\n{shown}```\n"]


# Budgets.


def test_each_turn_may_use_what_remains() -> None:
    """Fault 10: every pass had the full budget."""
    played = play([CALL, CALL, "ok"], [Echo()], max_tool_calls=2, max_completion_tokens=200)
    rooms = [room for _, room, _ in played.session.asked]
    assert rooms[0] == 200
    assert rooms == [200 - turn.start for turn in played.trajectory.turns]


@pytest.mark.parametrize("budget", range(1, 90))
def test_a_budget_that_runs_out_anywhere(budget: int) -> None:
    long = Echo(lambda _: "7" * 30)
    played = play([CALL, CALL, "\\boxed{372}" * 9], [long], max_tool_calls=9, max_completion_tokens=budget)
    t = played.trajectory
    assert len(t.ids) == budget
    assert t.truncated
    assert all(room > 0 for _, room, _ in played.session.asked)


def test_always_calling_ends() -> None:
    """trl#4751: a tool loop without end."""
    echo = Echo()
    t = play([CALL] * 99, [echo], max_tool_calls=2, max_completion_tokens=9000).trajectory
    assert len(echo.heard) == 2
    assert [r.status for r in t.calls] == ["ok", "ok", *["no_calls_left"] * 3]
    assert t.stop_reason is StopReason.TOOL
    assert not t.truncated


# Observations.


@pytest.mark.parametrize("vocabulary", CANONICAL)
@pytest.mark.parametrize("budget", [1, 5, 12, 30, 64, 128])
def test_long_output_keeps_head_and_tail(vocabulary: Vocabulary, budget: int) -> None:
    shown = "".join(f"{n} é数🙂\n" for n in range(3000))
    ids = observation_ids(vocabulary, CALL, shown, budget)
    text = vocabulary.decode(ids)
    assert len(ids) <= budget
    assert "\ufffd" not in text
    if budget < 64:
        return
    assert len(ids) > budget - 12
    assert text.endswith("\n```\n")
    head, cut, tail = text.partition("\n[... ")
    missing, _, tail = tail.partition(" characters cut ...]\n")
    assert cut
    assert shown.startswith(head.removeprefix("\n"))
    tail = tail.removesuffix("```\n")
    assert shown.endswith(tail)
    assert 0 < len(vocabulary.encode(tail)) < len(vocabulary.encode(head))
    assert int(missing) == len(shown) - len(head) + 1 - len(tail)


@given(shown=st.lists(st.text(max_size=9) | SAID, max_size=30).map("".join), budget=st.integers(1, 90))
@settings(max_examples=200, deadline=None)
def test_observations_stay_within_their_budget(shown: str, budget: int) -> None:
    shown = shown.replace("\ud800", "?").replace("\ufffd", "?")
    for vocabulary in (BYTES, PIECE):
        ids = observation_ids(vocabulary, CALL, shown, budget)
        text = vocabulary.decode(ids)
        assert len(ids) <= budget
        assert "\ufffd" not in text
        whole = vocabulary.encode(protocol.observation_text(CALL, shown))
        assert ids == whole or len(whole) > budget
        if text.endswith("```\n") and budget > 60:
            assert segments(CALL + text)[-2].closed


def test_an_endless_output_costs_little() -> None:
    ids = run(asyncio.to_thread(observation_ids, BYTES, CALL, " 7" * 20_000_000, 64), limit_s=5)
    assert len(ids) <= 64
    assert "characters cut" in BYTES.decode(ids)


def test_the_observation_fits_what_remains() -> None:
    room = len(BYTES.encode(CALL)) + 50
    t = play([CALL], [Echo(lambda _: "7\n" * 500)], max_completion_tokens=room).trajectory
    assert len(t.ids) <= room
    assert "characters cut" in t.turns[0].observation
    assert t.turns[0].observation.endswith("\n```\n")


@pytest.mark.parametrize("vocabulary", CANONICAL)
def test_special_text_of_a_tool_is_text(vocabulary: Vocabulary) -> None:
    shown = "<|im_end|></s><s><unk><tool_call><|endoftext|>"
    t = play([CALL, "x"], [Echo(lambda _: shown)], vocabulary).trajectory
    seen = t.ids[t.turns[0].end : t.turns[0].observation_end]
    assert vocabulary.decode(seen) == f"\n{shown}\n```\n"
    assert not set(vocabulary.tokenizer.added_tokens_decoder) & set(seen)


def test_text_that_is_no_unicode() -> None:
    t = play([CALL, "x"], [Echo(lambda _: "a\ud800b\x00c")]).trajectory
    assert t.turns[0].observation == "\na?b\x00c\n```\n"
    assert t.calls[0].text == "a?b\x00c"  # it can be stored, too
    assert play([CALL, "x"], [Echo(lambda _: ModelMistake("\udfff"))]).trajectory.calls[0].text == "?"


# Calls: C, and what comes after.


@pytest.mark.parametrize("c", [0, 1, 2, 3])
def test_exactly_c_calls_are_executed(c: int) -> None:
    """Fault 22: the reference counted model calls."""
    echo = Echo()
    t = play([CALL] * 6, [echo], max_tool_calls=c, max_completion_tokens=2000).trajectory
    assert [context.call_number for _, context in echo.heard] == list(range(c))
    assert sum(r.executed for r in t.calls) == c
    assert f"({c} allowed)" in t.calls[c].text
    assert echo.heard == [("print(12 * 31)\n", ToolContext("add/7#3", "add/7", n)) for n in range(c)]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_requests_past_the_last_call_are_told_then_end(most: int) -> None:
    limits = {"max_tool_calls": 1, "max_requests_past_budget": most, "max_completion_tokens": 2000}
    played = play([CALL] * 9, [Echo()], **limits)
    t = played.trajectory
    assert len(t.turns) == 1 + most + 1
    assert [r.stop for r in t.calls] == [False] * (1 + most) + [True]
    assert t.stop_reason is StopReason.TOOL
    assert t.turns[-1].observation  # the last refusal stands there too
    assert played.session.context == t.prompt_ids + t.ids
    assert t.invented_outputs == 0


def test_ignored_requests_are_not_answered_and_inventions_do_not_train() -> None:
    """Fault 8: past C the reference trained on output that the policy made up."""
    made_up = "```python\ny\n```\n```output\n5\n```\nSo \\boxed{5}"
    played = play([CALL, made_up], [Echo()], max_tool_calls=1, past_budget="ignore")
    t = played.trajectory
    assert [stop for stop, _, _ in played.session.asked] == [["```output"], []]
    assert len(t.calls) == t.invented_outputs == 1
    assert t.stop_reason is StopReason.LENGTH
    dropped = [i for i, m, s in zip(t.ids, t.loss_mask, t.sampled, strict=True) if s and not m]
    assert BYTES.decode(dropped) == "5\n```"
    assert BYTES.decode(played.trained) == CALL + made_up.replace("5\n```", "", 1)


@pytest.mark.parametrize("vocabulary", CANONICAL)
def test_inventions_without_tools_are_masked_and_counted(vocabulary: Vocabulary) -> None:
    made_up = "```python\nx\n```\n```output\n5é\n```\na\n```output\n6🙂"
    played = play([made_up], [], vocabulary)
    assert played.session.asked[0][0] == []
    assert played.trajectory.invented_outputs == 2
    ids = played.trained
    assert vocabulary.decode(ids) == "```python\nx\n```\n```output\n\na\n```output\n"


def test_a_stop_string_of_the_recipes_own() -> None:
    played = play(["5\nUser: more", "never"], [Echo()], stop=["\nUser:"])
    assert played.trajectory.policy_text.rstrip() == "5\nUser:"
    assert played.trajectory.stop_reason is StopReason.STOP
    assert play([CALL, "x"], [], stop=["```output"]).trajectory.calls == []  # no tools: it ends


def test_malformed_requests_are_told_and_use_up_a_call() -> None:
    echo = Echo()
    limits = {"max_tool_calls": 2, "max_completion_tokens": 2000}
    t = play(["```output", "```sql\nx\n```\n```output", CALL, "x"], [echo], **limits).trajectory
    assert [r.status for r in t.calls] == ["malformed", "malformed", "no_calls_left"]
    assert echo.heard == []
    assert [turn.call for turn in t.turns] == [None] * 4
    assert all("Error" in turn.observation for turn in t.turns[:3])


def test_a_tool_may_end_the_episode() -> None:
    played = play([CALL, "never"], [STOPS])
    t = played.trajectory
    assert t.stop_reason is StopReason.TOOL
    assert len(t.turns) == 1
    assert t.turns[0].observation == "\ndone\n```\n"  # what it said is on record
    assert not any(t.loss_mask[t.turns[0].end :])
    assert played.session.context == t.prompt_ids + t.ids


# What goes wrong in a tool.


def test_a_mistake_is_shown_and_trains() -> None:
    t = play([CALL, "x"], [Echo(lambda _: ModelMistake("no such column"))]).trajectory
    assert t.turns[0].observation == "\nno such column\n```\n"
    assert (t.calls[0].status, t.calls[0].executed) == ("error", True)


def test_a_fault_loses_the_trajectory() -> None:
    with pytest.raises(SandboxFault):
        play([CALL], [Echo(lambda _: SandboxFault("a worker died"))])


def test_any_other_error_goes_up() -> None:
    with pytest.raises(ZeroDivisionError):
        play([CALL], [Echo(lambda _: ZeroDivisionError())])


def test_a_hanging_tool_is_the_worlds_fault() -> None:
    class Hangs(Echo):
        async def __call__(self, text: str, context: ToolContext) -> ToolResult:
            await asyncio.sleep(3600)
            return await super().__call__(text, context)

    with pytest.raises(WorldFault, match=r"add/7#3: tool 'python' gave no answer in 0\.05 s"):
        play([CALL], [Hangs()], tool_timeout_s=0.05)


def test_a_tools_own_time_limit_is_not_ours() -> None:
    with pytest.raises(TimeoutError, match="the database"):
        play([CALL], [Echo(lambda _: TimeoutError("the database"))])


def test_logprobs_of_another_length_are_a_bug() -> None:
    sampler = watched(BYTES, lambda *_: BYTES.encode("abc"))

    async def main() -> None:
        agent = agent_of(sampler)
        session = sampler.open(agent.encode_prompt(TASK), [(0,)])[0]
        sample = session.sample

        async def broken(*args: Any) -> Any:
            completion = await sample(*args)
            completion.logprobs.pop()
            return completion

        session.sample = broken
        await run_episode(agent, TASK, 5, session)

    with pytest.raises(Bug, match="add/7#5"):
        run(main())


# Ids under spans of text, and a real sampler.


@given(text=st.text(max_size=30), data=st.data())
@settings(max_examples=200, deadline=None)
def test_ids_that_touch_a_span(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=len(raw), max_size=len(raw)))
    cuts = [c for c in [sum(sizes[:n]) for n in range(len(sizes) + 1)] if c < len(raw)] + [len(raw)]
    pieces = [raw[a:b] for a, b in pairwise(cuts)]
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, len(text)))
    first, last = len(text[:begin].encode()), len(text[:end].encode())
    starts = [0]
    for character in text:
        starts.append(starts[-1] + len(character.encode()))
    # Touches: some byte of the id belongs to a character of the span.
    expected = [n for n, (a, b) in enumerate(pairwise(cuts)) if max(a, first) < min(b, last)]

    class Table(Vocabulary):
        def __init__(self) -> None:
            self.size = len(pieces)
            self._bytes = pieces

    assert under(Table(), list(range(len(pieces))), [(begin, end)] if begin < end else []) == expected


def test_a_sampled_episode_has_the_logprobs_of_its_whole_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny random model whose marker is one letter, so that it asks again and again: what
    each id was sampled with is what one pass over prompt and trajectory gives it."""
    monkeypatch.setattr(protocol, "MARKER", "e")
    model = tiny_model("llama", vocab_size=300)

    async def main() -> list[Trajectory]:
        sampler = EmbeddedSampler(model, BYTES, frozenset([END]), max_sequences=4)
        try:
            limits = {"max_tool_calls": 3, "max_completion_tokens": 300, "max_observation_tokens": 40}
            agent = agent_of(sampler, [Echo()], BYTES, **limits)
            prompt = agent.encode_prompt(TASK)
            sessions = sampler.open(prompt, [(n,) for n in range(4)])
            rows = enumerate(sessions)
            done = await asyncio.gather(*(run_episode(agent, TASK, n, s, prompt) for n, s in rows))
            assert [s.ids for s in sessions] == [t.prompt_ids + t.ids for t in done]
            return done
        finally:
            await sampler.close()

    trajectories = run(main())
    assert sum(len(t.calls) for t in trajectories) >= 4
    for t in trajectories:
        ids = torch.tensor([t.prompt_ids + t.ids])
        with torch.inference_mode():
            logprobs = model(ids).logits[0, len(t.prompt_ids) - 1 : -1].log_softmax(-1)
        expected = logprobs.gather(1, ids[0, len(t.prompt_ids) :, None])[:, 0]
        sampled = torch.tensor(t.sampled, dtype=torch.bool)
        given_ = torch.tensor(t.sampler_logprobs)
        assert (given_ - expected)[sampled].abs().max() < 1e-4
        assert not given_[~sampled].any()
        assert len(t.ids) <= 300


def test_a_function_is_a_tool() -> None:
    def python(text: str) -> str:
        return text.upper()

    t = play([CALL, "x"], [function_tool(python)]).trajectory
    assert t.turns[0].observation == "\nPRINT(12 * 31)\n```\n"
