"""What the tests of the rewards share: trajectories made by hand, and a judge that is closed again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from torl.config import Correctness
from torl.rewards import Judge
from torl.rollout.protocol import code_blocks, observation_text
from torl.types import StopReason, Task, ToolCall, ToolResult, Trajectory, Turn


def trajectory(
    *turns: str | tuple[str, ToolResult | str], answer: str = "42", problem: str = "?", **meta: Any
) -> Trajectory:
    """Turns are what the policy wrote, with what the tool answered if it was called."""
    made = Trajectory(Task("task", problem, answer, meta=meta), sample=0, prompt_ids=[1])
    for turn in turns:
        text, result = (turn, None) if isinstance(turn, str) else turn
        if isinstance(result, str):
            result = ToolResult(result)
        blocks = code_blocks(text)
        call = ToolCall("python", blocks[-1].body if blocks else "") if result is not None else None
        observation = observation_text(text, result.text) if result is not None else ""
        made.turns.append(Turn(0, 1, 1, text, StopReason.STOP, observation, call, result))
    return made


def calling(code: str, before: str = "") -> str:
    """A turn that asks to run code."""
    return f"{before}```python\n{code}\n```\n```output"


def with_judge(
    use: Callable[[Judge], Awaitable[Any]],
    rewards: dict[str, float] | None = None,
    extra: list[Callable[..., Any]] | None = None,
    config: Correctness | None = None,
    **options: Any,
) -> Any:
    async def run() -> Any:
        judge = Judge(rewards or {"correctness": 1.0}, config or Correctness(), extra or [], **options)
        try:
            return await use(judge)
        finally:
            await judge.close()

    return asyncio.run(run())


def judged(made: Trajectory, *args: Any, **options: Any) -> Trajectory:
    with_judge(lambda judge: judge.judge(made), *args, **options)
    return made
