"""What the policy may call: the Python tool, and any function of yours."""

import os
import sys
from typing import Any

from torl import config
from torl.config import Recipe
from torl.errors import UserError
from torl.imports import import_object, nearest
from torl.sandbox import Limits, Sandbox
from torl.sandbox.plain import PlainSandbox
from torl.tools.base import Tool, ToolContext
from torl.tools.functions import FunctionTool, function_tool
from torl.tools.python import Box, PythonTool


def load_tools(recipe: Recipe) -> list[Tool]:
    """The tools that a recipe names, in its order.

    "python" is the Python tool with the recipe's sandbox limits; "pkg.module:name" is a
    function, or an object that already is a tool. Raises UserError naming the choices and the
    nearest name.
    """
    tools: list[Tool] = []
    for name in recipe.tools:
        tool: Tool = _python_tool(recipe) if name == "python" else _imported(name)
        if tool.name in [other.name for other in tools]:
            raise UserError(
                f"tools: two tools are named {tool.name!r}; the policy could not tell them apart"
            )
        tools.append(tool)
    return tools


def _python_tool(recipe: Recipe) -> PythonTool:
    section = recipe.sandbox
    return PythonTool(box=make_box(section), state=section.state, last_value=section.last_value)


def make_box(section: config.Sandbox) -> Box:
    """A sandbox as the recipe wants it, not started. Raises UserError for impossible limits."""
    names = ("timeout_s", "cpu_s", "memory_mb", "output_kb", "workers")
    try:
        limits = Limits(**{name: getattr(section, name) for name in names})
    except ValueError as error:
        raise UserError(f"sandbox: {error}") from error
    if section.urls:
        from torl.sandbox.client import RemoteSandbox

        return RemoteSandbox(section.urls, token=os.environ.get("TORL_SANDBOX_TOKEN"), limits=limits)
    python = section.python or sys.executable
    if section.tier == "unsafe" and sys.platform != "linux":
        return PlainSandbox(limits, python=python)
    return Sandbox(limits, python=python, tier=section.tier, preload=section.preload)


def _imported(name: str) -> Tool:
    if ":" not in name:
        raise UserError(
            f"tools: no tool named {name!r}.{nearest(name, ['python'])} Choices: python; "
            "pkg.module:function for a function of yours; none"
        )
    found = import_object(name, "tools")
    if _is_tool(found):
        tool: Tool = found
        return tool
    if not callable(found):
        raise UserError(f"tools: {name} is a {type(found).__name__}, not a function or a tool")
    return function_tool(found)


def _is_tool(value: Any) -> bool:
    return not isinstance(value, type) and all(
        hasattr(value, part) for part in ("name", "close", "__call__")
    )


__all__ = [
    "FunctionTool",
    "PythonTool",
    "Tool",
    "ToolContext",
    "function_tool",
    "load_tools",
    "make_box",
]
