"""What a tool is: a name, and a coroutine from the text inside the fence to a ToolResult.

The policy asks for a tool by the info string of a fenced block: a block fenced as ``python``
goes to the tool named "python".
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

from torl.types import ToolResult


@dataclass(frozen=True)
class ToolContext:
    """Who calls. ``ending`` belongs to the episode: a tool that keeps something for it says
    there what is to be done when the episode ends, however it ends."""

    trajectory_id: str
    task_id: str
    call_number: int  # 0 for the trajectory's first call
    ending: AsyncExitStack = field(default_factory=AsyncExitStack, compare=False, repr=False)


class Tool(Protocol):
    """A tool may be called by many trajectories at once.

    ``__call__`` returns a ToolResult for everything that is the model's doing (its code
    raised, ran out of time, ...) and raises WorldFault when the tool itself failed.
    """

    name: str

    async def __call__(self, text: str, context: ToolContext) -> ToolResult: ...

    async def close(self) -> None:
        """Frees what the tool holds. Called once, at the end of the run."""
        ...
