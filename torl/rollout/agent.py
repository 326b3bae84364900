"""One trajectory is one coroutine: sample, call, observe, until the policy is done."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from torl import config
from torl.errors import ModelMistake, WorldFault
from torl.rollout import protocol
from torl.rollout.prompt import Encode
from torl.samplers.base import Sampler, SamplingParams, Session
from torl.tokens import Vocabulary
from torl.tools.base import Tool, ToolContext
from torl.types import StopReason, Task, ToolCall, ToolResult, Trajectory, Turn


@dataclass(frozen=True)
class Agent:
    """All that an episode needs beside its task."""

    sampler: Sampler
    vocabulary: Vocabulary
    encode_prompt: Encode
    limits: config.Rollout = field(default_factory=config.Rollout)
    tools: Mapping[str, Tool] = field(default_factory=dict)

    @property
    def max_tool_calls(self) -> int:
        return self.limits.max_tool_calls if self.tools else 0


async def run_episode(agent: Agent, task: Task, sample: int, session: Session) -> Trajectory:
    """Plays one episode of ``task``. Raises WorldFault when the world failed; the trajectory
    is then lost, and what the policy did is not judged."""
    started = time.monotonic()
    trajectory = Trajectory(task, sample, prompt_ids=agent.encode_prompt(task))
    params = SamplingParams(agent.limits.temperature)
    while (room := agent.limits.max_completion_tokens - len(trajectory.ids)) > 0:
        stop = [*_markers(agent, trajectory), *agent.limits.stop]
        completion = await session.sample(stop, room, params)
        turn = trajectory.append_completion(completion, agent.vocabulary.decode(completion.ids))
        trajectory.stop_reason = completion.stop_reason
        if completion.stop != protocol.MARKER:
            break
        turn.call, turn.result = await _answer(agent, trajectory, turn)
        trajectory.stop_reason = StopReason.LENGTH  # unless the policy, or the tool, says otherwise
        if turn.result.stop:
            trajectory.stop_reason = StopReason.TOOL
            break
        _observe(agent, trajectory, session, turn, turn.result)
    _mask_invented_outputs(agent.vocabulary, trajectory)
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


async def _answer(agent: Agent, trajectory: Trajectory, turn: Turn) -> tuple[ToolCall | None, ToolResult]:
    """The call that the turn asks for, if it is one, and its result."""
    spent = _spent(trajectory)
    if spent >= agent.max_tool_calls:
        refused = len(trajectory.calls) - spent
        result = protocol.no_calls_left(agent.max_tool_calls)
        result.stop = refused >= agent.limits.max_requests_past_budget
        return None, result
    request = protocol.requested_call(turn.text, list(agent.tools))
    if isinstance(request, ToolResult):
        return None, request
    context = ToolContext(trajectory.id, trajectory.task.id, call_number=spent)
    return request, await _call(agent, request, context)


async def _call(agent: Agent, request: ToolCall, context: ToolContext) -> ToolResult:
    try:
        async with asyncio.timeout(agent.limits.tool_timeout_s):
            return await agent.tools[request.name](request.text, context)
    except ModelMistake as mistake:
        return ToolResult(str(mistake), status="error")
    except TimeoutError as error:
        limit = agent.limits.tool_timeout_s
        raise WorldFault(f"{context.trajectory_id}: {request.name} gave no answer in {limit} s") from error


def _observe(
    agent: Agent, trajectory: Trajectory, session: Session, turn: Turn, result: ToolResult
) -> None:
    """Appends the result to the context, within the observation's and the episode's budget."""
    room = agent.limits.max_completion_tokens - len(trajectory.ids)
    ids = _observation_ids(agent.vocabulary, turn.text, result.text, agent.limits.max_observation_tokens)
    ids = ids[:room]
    trajectory.append_observation(ids, agent.vocabulary.decode(ids))
    session.append(ids)


def _observation_ids(vocabulary: Vocabulary, turn_text: str, shown: str, budget: int) -> list[int]:
    """Ids of an observation, tokenised alone; of a long one, head and tail are kept."""
    ids = vocabulary.encode(protocol.observation_text(turn_text, shown))
    body = vocabulary.encode(shown) if len(ids) > budget else []
    kept = budget
    while len(ids) > budget and kept > 0:
        kept -= max(1, len(ids) - budget)
        kept = max(kept, 0)
        head, tail = body[: kept - kept // 3], body[len(body) - kept // 3 :]
        cut = f"\n[... {len(body) - kept} tokens cut ...]\n"
        text = _whole(vocabulary.decode(head)) + cut + _whole(vocabulary.decode(tail))
        ids = vocabulary.encode(protocol.observation_text(turn_text, text))
    return ids[:budget]


def _whole(text: str) -> str:
    """Without the halves of characters that a cut between ids may leave at the ends."""
    return text.strip("\N{REPLACEMENT CHARACTER}")


def _mask_invented_outputs(vocabulary: Vocabulary, trajectory: Trajectory) -> None:
    """Output blocks that the policy wrote itself do not train, and are counted."""
    for turn in trajectory.turns:
        spans = protocol.invented_outputs(turn.text, answered=turn.result is not None)
        trajectory.invented_outputs += len(spans)
        if not spans:
            continue
        ids = trajectory.ids[turn.start : turn.end]
        ends = [len(vocabulary.decode(ids[: n + 1])) for n in range(len(ids))]
        for n, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if any(begin < stop and start < end for start, stop in spans):
                trajectory.loss_mask[turn.start + n] = 0
