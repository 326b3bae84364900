"""torl trains language models by reinforcement learning to use tools while they reason."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torl.config import Recipe, load_recipe
    from torl.errors import ModelMistake, UserError, WorldFault
    from torl.run import Run
    from torl.tasks import TaskSets
    from torl.train import train
    from torl.types import Task, ToolResult, Trajectory

_HOME = {
    "Recipe": "torl.config",
    "load_recipe": "torl.config",
    "ModelMistake": "torl.errors",
    "UserError": "torl.errors",
    "WorldFault": "torl.errors",
    "Run": "torl.run",
    "TaskSets": "torl.tasks",
    "train": "torl.train",
    "Task": "torl.types",
    "ToolResult": "torl.types",
    "Trajectory": "torl.types",
}

__all__ = [
    "ModelMistake",
    "Recipe",
    "Run",
    "Task",
    "TaskSets",
    "ToolResult",
    "Trajectory",
    "UserError",
    "WorldFault",
    "load_recipe",
    "train",
]


def __getattr__(name: str) -> Any:
    """Loaded on first use: importing torl.sandbox must not import torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'torl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
