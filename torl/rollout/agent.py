"""One trajectory is one coroutine: sample, call, observe, until the policy is done."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from torl import config
from torl.errors import ModelMistake, WorldFault
from torl.insight.spent import Spent
from torl.rollout import protocol
from torl.rollout.ids import observation_ids, under, without_surrogates
from torl.rollout.prompt import Encode
from torl.samplers.base import Sampler, SamplingParams, Session
from torl.tokens import Vocabulary
from torl.tools.base import Tool, ToolContext
from torl.types import StopReason, Task, ToolCall, ToolResult, Trajectory


@dataclass(frozen=True)
class Agent:
    """All that an episode needs beside its task."""

    sampler: Sampler
    vocabulary: Vocabulary
    encode_prompt: Encode
    limits: config.Rollout = field(default_factory=config.Rollout)
    tools: Mapping[str, Tool] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)

    @property
    def max_tool_calls(self) -> int:
        return self.limits.max_tool_calls if self.tools else 0


async def run_episode(
    agent: Agent, task: Task, sample: int, session: Session, prompt_ids: list[int] | None = None
) -> Trajectory:
    """Plays one episode of ``task`` in ``session``. ``prompt_ids`` are those it was opened with,
    None for the agent's own prompt. Raises WorldFault when the world failed: the trajectory is
    then lost, and what the policy did is not judged."""
    started = time.monotonic()
    limits, vocabulary = agent.limits, agent.vocabulary
    params = SamplingParams(limits.temperature, limits.top_k, limits.top_p, limits.min_p)
    trajectory = Trajectory(task, sample, prompt_ids or agent.encode_prompt(task))
    async with AsyncExitStack() as ending:
        while (room := limits.max_completion_tokens - len(trajectory.ids)) > 0:
            markers = _markers(agent, trajectory)
            completion = await session.sample([*markers, *limits.stop], room, params)
            turn = trajectory.append_completion(completion, vocabulary.decode(completion.ids))
            trajectory.stop_reason = completion.stop_reason
            if completion.stop not in markers:
                break
            turn.call, turn.result = await _answer(agent, trajectory, turn.text, ending)
            budget = min(limits.max_observation_tokens, room - len(completion.ids))
            observed = observation_ids(vocabulary, turn.text, turn.result.text, budget)
            trajectory.append_observation(observed, vocabulary.decode(observed))
            session.append(observed)
            trajectory.stop_reason = StopReason.TOOL if turn.result.stop else StopReason.LENGTH
            if turn.result.stop:
                break
    _mask_invented_outputs(vocabulary, trajectory)
    trajectory.seconds = time.monotonic() - started
    trajectory.check()
    return trajectory


def _markers(agent: Agent, trajectory: Trajectory) -> list[str]:
    """The marker stops sampling while a request would be answered."""
    tells = bool(agent.tools) and agent.limits.past_budget == "tell"
    return [protocol.MARKER] if tells or _spent(trajectory) < agent.max_tool_calls else []


def _spent(trajectory: Trajectory) -> int:
    """Calls used up so far. A malformed request counts, or a policy could ask for ever."""
    return sum(result.status != "no_calls_left" for result in trajectory.calls)


async def _answer(
    agent: Agent, trajectory: Trajectory, turn_text: str, ending: AsyncExitStack
) -> tuple[ToolCall | None, ToolResult]:
    """The call that a turn asks for, if it is one, and its result."""
    spent = _spent(trajectory)
    if spent >= agent.max_tool_calls:
        refused = len(trajectory.calls) - spent
        enough = refused >= agent.limits.max_requests_past_budget
        return None, protocol.no_calls_left(agent.max_tool_calls, stop=enough)
    request = protocol.requested_call(turn_text, list(agent.tools))
    if isinstance(request, ToolResult):
        return None, request
    context = ToolContext(trajectory.id, trajectory.task.id, spent, ending)
    result = await _call(agent, request, context)
    return request, replace(result, text=without_surrogates(result.text))


async def _call(agent: Agent, request: ToolCall, context: ToolContext) -> ToolResult:
    try:
        async with asyncio.timeout(agent.limits.tool_timeout_s) as limit:
            with agent.spent.on("tools"):
                return await agent.tools[request.name](request.text, context)
    except ModelMistake as mistake:
        return ToolResult(str(mistake), status="error")
    except TimeoutError as error:
        if not limit.expired():  # the tool's own
            raise
        waited = f"no answer in {agent.limits.tool_timeout_s:g} s"
        raise WorldFault(f"{context.trajectory_id}: tool {request.name!r} gave {waited}") from error


def _mask_invented_outputs(vocabulary: Vocabulary, trajectory: Trajectory) -> None:
    """Output blocks that the policy wrote itself do not train, and are counted."""
    for turn in trajectory.turns:
        spans = protocol.invented_outputs(turn.text, answered=turn.result is not None)
        trajectory.invented_outputs += len(spans)
        for position in under(vocabulary, trajectory.ids[turn.start : turn.end], spans):
            trajectory.loss_mask[turn.start + position] = 0
