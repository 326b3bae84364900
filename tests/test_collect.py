"""Many trajectories at once: what becomes of faults and bugs, and that nobody waits for another."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from rollout_kit import CALL, Echo, WatchedSampler, agent_of, run, watched
from tiny import byte_level_tokenizer, tiny_model

from torl.errors import Bug, ModelMistake, SamplerFault, SandboxFault, UserError, VerifierFault, WorldFault
from torl.rollout import protocol
from torl.rollout.collect import collect
from torl.samplers.embedded.engine import EmbeddedSampler
from torl.tokens import Vocabulary
from torl.tools import Tool, ToolContext, function_tool
from torl.types import Group, Task, ToolCall, ToolResult, Trajectory

WORDS = Vocabulary(byte_level_tokenizer())
TASKS = [Task("a/1", "What is 12 * 31?", "372"), Task("b/2", "And 2 + 2?", "4")]


class ByCaller(Echo):
    """A tool whose answer depends on who calls, and how often it has asked."""

    def __init__(self, act: Callable[[str, int], Any]) -> None:
        super().__init__()
        self.asked: dict[str, int] = {}
        self.act = act

    async def __call__(self, _: str, context: ToolContext) -> ToolResult:
        caller = context.trajectory_id
        self.asked[caller] = self.asked.get(caller, 0) + 1
        found = self.act(caller, self.asked[caller])
        if asyncio.iscoroutine(found):
            found = await found
        if isinstance(found, BaseException):
            raise found
        return ToolResult(str(found))


def sampler_of(*turns: str) -> WatchedSampler:
    """Everyone calls, then answers with a number of its own."""
    return watched(WORDS, lambda seed, n: WORDS.encode((turns or (CALL, f"\\boxed{{{seed[-1]}}}"))[n]))


async def judge(trajectory: Trajectory) -> None:
    trajectory.reward = 1.0


def gather(
    tools: Sequence[Tool],
    *,
    sampler: Any = None,
    tasks: Sequence[Task] = TASKS[:1],
    group_size: int = 16,
    judge: Any = judge,
    **options: Any,
) -> list[Group]:
    """Collects, and sees to it that every session is closed, however it ends."""
    sampler = sampler or sampler_of()
    agent = agent_of(sampler, tools, max_completion_tokens=400)
    try:
        return run(collect(agent, tasks, group_size, judge, seed=(0, 7), **options))
    finally:
        assert sampler.sessions
        assert all(s.closed for s in sampler.sessions)


def test_groups_come_back_in_order_and_judged() -> None:
    seen: list[Any] = []
    groups = gather([Echo()], tasks=TASKS, group_size=3, on_done=seen.append)
    assert [g.task.id for g in groups] == ["a/1", "b/2"]
    every = [t for g in groups for t in g.trajectories]
    assert [t.id for t in every] == ["a/1#0", "a/1#1", "a/1#2", "b/2#0", "b/2#1", "b/2#2"]
    assert [t.turns[1].text for t in every] == ["\\boxed{0}", "\\boxed{1}", "\\boxed{2}"] * 2
    assert [g.rewards for g in groups] == [[1.0] * 3] * 2
    assert len(seen) == 6
    assert all(len(g.trajectories[0].turns) == 2 for g in groups)


def test_streams_differ_by_task_sample_and_batch() -> None:
    seeds: list[tuple[int, ...]] = []
    for batch in ((0, 1), (0, 2)):
        sampler = sampler_of()
        run(collect(agent_of(sampler, [Echo()]), TASKS, 4, judge, seed=batch))
        seeds += [s.seed for s in sampler.sessions]
    assert len(set(seeds)) == 2 * 2 * 4
    # A task's streams are the same whoever else is in the batch.
    alone = sampler_of()
    run(collect(agent_of(alone, [Echo()]), TASKS[1:], 2, judge, seed=(0, 1)))
    assert [s.seed for s in alone.sessions] == seeds[4:6]


# The world's faults: retried, or dropped and counted.


@pytest.mark.parametrize("fault", [SandboxFault, SamplerFault, WorldFault])
def test_one_of_sixteen_is_lost(fault: type[WorldFault], caplog: pytest.LogCaptureFixture) -> None:
    """SkyRL#1613, slime#2078: one failing rollout took the step with it."""
    tool = ByCaller(lambda who, _: fault("a worker died") if who == "a/1#5" else 5)
    seen: list[Any] = []
    with caplog.at_level(logging.WARNING, "torl"):
        [group] = gather([tool], on_done=seen.append, retries=2)
    assert [t.sample for t in group.trajectories] == [n for n in range(16) if n != 5]
    assert group.dropped == 1
    assert len(group.rewards) == 15
    assert tool.asked == {f"a/1#{n}": 3 if n == 5 else 1 for n in range(16)}
    assert len(seen) == 16
    assert seen.count(None) == 1
    fates = [r.getMessage() for r in caplog.records]
    assert fates == [
        *["trajectory a/1#5 is tried again: a worker died"] * 2,
        "trajectory a/1#5 is lost: a worker died",
    ]


def test_a_retry_succeeds_with_the_same_stream() -> None:
    faults = ByCaller(lambda _, n: WorldFault("weather") if n == 1 else 5)
    sampler = sampler_of()
    [tried] = gather([faults], sampler=sampler, retries=1, group_size=4)
    [calm] = gather([ByCaller(lambda *_: 5)], group_size=4)
    assert tried.dropped == 0
    assert [t.ids for t in tried.trajectories] == [t.ids for t in calm.trajectories]
    assert [s.seed for s in sampler.sessions[:4]] == [s.seed for s in sampler.sessions[4:]]


def test_all_are_lost() -> None:
    [group] = gather([ByCaller(lambda *_: WorldFault("no sandbox"))])
    assert (group.trajectories, group.dropped, group.rewards) == ([], 16, [])


def test_a_sampler_that_cannot_open_again() -> None:
    class Once(WatchedSampler):
        def open(self, prompt_ids: Any, seeds: Any) -> Any:
            if self.sessions:
                raise SamplerFault("the server is gone")
            return super().open(prompt_ids, seeds)

    sampler = sampler_of()
    sampler.__class__ = Once
    tool = ByCaller(lambda who, _: WorldFault("x") if who.endswith("#1") else 5)
    [group] = gather([tool], sampler=sampler, group_size=3, retries=2)
    assert group.dropped == 1


def test_a_verifier_that_fails_is_no_reward() -> None:
    """Peers score it 0 (PEERS D 44): the rest's rewards must not change."""

    async def doubtful(trajectory: Trajectory) -> None:
        if trajectory.sample in (2, 9):
            raise VerifierFault("undecided")
        trajectory.reward = 0.5

    [group] = gather([Echo()], judge=doubtful)
    assert group.dropped == 2
    assert group.rewards == [0.5] * 14


def test_a_hanging_tool_costs_its_own_trajectory() -> None:
    tool = ByCaller(lambda who, _: asyncio.sleep(3600) if who == "a/1#0" else 5)
    sampler = sampler_of()
    agent = agent_of(sampler, [tool], max_completion_tokens=400, tool_timeout_s=0.1)
    [group] = run(collect(agent, TASKS[:1], 4, judge, seed=(0,)), limit_s=5)
    assert group.dropped == 1
    assert all(s.closed for s in sampler.sessions)


# Our bugs: a crash that names the trajectory and leaves nothing behind.


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x / 0"), KeyError("id"), Bug("lengths"), TimeoutError()]
)
def test_a_bug_names_the_trajectory(error: Exception) -> None:
    others: list[str] = []

    async def slow(who: str) -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            others.append(who)
            raise
        return ""

    async def late() -> str:
        await asyncio.sleep(0.05)
        raise error

    tool = ByCaller(lambda who, _: late() if who == "a/1#5" else slow(who))
    with pytest.raises(Bug, match=r"a/1#5") as caught:
        gather([tool], tasks=TASKS, retries=3)
    assert type(error).__name__ in str(caught.value)
    assert caught.value.__cause__ is error  # with its own traceback
    assert len(others) == 31


def test_a_bug_that_names_it_already_is_left_alone() -> None:
    async def broken(trajectory: Trajectory) -> None:
        raise Bug(f"{trajectory.id}: no reward")

    with pytest.raises(Bug, match=r"^a/1#0: no reward$"):
        gather([Echo()], judge=broken, group_size=1)


def test_a_judge_may_not_blame_the_model() -> None:
    async def broken(_: Trajectory) -> None:
        raise ModelMistake("oops")

    with pytest.raises(Bug, match=r"a/1#0: ModelMistake: oops"):
        gather([Echo()], judge=broken, group_size=1)


def test_what_the_user_did_wrong_stays_that() -> None:
    with pytest.raises(UserError, match="no such table"):
        gather([ByCaller(lambda *_: UserError("no such table"))])


def test_an_error_before_the_others_have_begun() -> None:
    class Second(WatchedSampler):
        def open(self, prompt_ids: Any, seeds: Any) -> Any:
            if self.sessions:
                raise UserError("an empty prompt")
            return super().open(prompt_ids, seeds)

    sampler = sampler_of()
    sampler.__class__ = Second
    with pytest.raises(UserError, match="an empty prompt"):
        gather([Echo()], sampler=sampler, tasks=TASKS)


@pytest.mark.parametrize("after_s", [0, 0.05])  # before the trajectories have begun, and after
def test_cancelling_closes_the_sessions(after_s: float) -> None:
    sampler = sampler_of()
    agent = agent_of(sampler, [ByCaller(lambda *_: asyncio.sleep(3600))])

    async def main() -> None:
        before = asyncio.all_tasks()
        job = asyncio.create_task(collect(agent, TASKS, 4, judge, seed=(0,)))
        await asyncio.sleep(after_s)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert asyncio.all_tasks() == before

    run(main(), limit_s=5)
    assert len(sampler.sessions) == 8
    assert all(s.closed for s in sampler.sessions)


# Nobody waits for another.


def test_blocking_tools_run_side_by_side() -> None:
    """trl#7175: sync tools ran on the event loop, one after the other."""

    def python(text: str) -> str:
        time.sleep(0.5)
        return text

    started = time.monotonic()
    [group] = gather([function_tool(python)], group_size=64)
    assert time.monotonic() - started < 2
    assert len(group.trajectories) == 64
    assert all(t.calls[0].run_s >= 0.5 for t in group.trajectories)


def sampled_groups(tool: Tool, monkeypatch: pytest.MonkeyPatch, retries: int = 0) -> list[Group]:
    """Groups of a tiny random model; every "e" that it writes is a call."""
    monkeypatch.setattr(protocol, "MARKER", "e")
    monkeypatch.setattr(protocol, "requested_call", lambda text, _: ToolCall("python", text))

    async def main() -> list[Group]:
        sampler = EmbeddedSampler(tiny_model("llama"), WORDS, frozenset(), max_sequences=8)
        agent = agent_of(sampler, [tool], WORDS, max_tool_calls=3, max_completion_tokens=120)
        try:
            return await collect(agent, TASKS, 6, judge, seed=(0, 1), retries=retries)
        finally:
            await sampler.close()

    return run(main())


def test_neither_delays_nor_retries_change_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(who: str, _: int) -> Any:
        return f"to {who}"

    def sooner_or_later(who: str, n: int) -> Any:
        async def answer() -> str:
            await asyncio.sleep(hash((who, n)) % 7 / 100)
            return f"to {who}"

        return answer()

    def once_broken(who: str, n: int) -> Any:
        return WorldFault("weather") if n == 1 and who[-1] in "135" else f"to {who}"

    calm = sampled_groups(ByCaller(at_once), monkeypatch)
    assert sum(len(t.calls) for g in calm for t in g.trajectories) >= 12
    for other, retries in ((sooner_or_later, 0), (once_broken, 1)):
        groups = sampled_groups(ByCaller(other), monkeypatch, retries)
        for expected, group in zip(calm, groups, strict=True):
            assert group.dropped == 0
            for a, b in zip(expected.trajectories, group.trajectories, strict=True):
                assert a.ids == b.ids
                assert a.sampler_logprobs == pytest.approx(b.sampler_logprobs, abs=1e-4)
