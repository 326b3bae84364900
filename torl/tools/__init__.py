"""What the policy may call: the Python tool, and any function of yours."""

import difflib
import importlib
import os
import sys
from typing import Any

from torl.config import Recipe
from torl.errors import UserError
from torl.sandbox import Limits
from torl.tools.base import Tool, ToolContext
from torl.tools.functions import FunctionTool, function_tool
from torl.tools.python import PythonTool


def load_tools(recipe: Recipe) -> list[Tool]:
    """The tools that a recipe names, in its order.

    "python" is the Python tool with the recipe's sandbox limits; "pkg.module:name" is a
    function, or an object that already is a tool. Raises UserError naming the choices and the
    nearest name.
    """
    tools: list[Tool] = []
    for name in recipe.tools:
        tool: Tool = PythonTool(_limits(recipe)) if name == "python" else _imported(name)
        if tool.name in [other.name for other in tools]:
            raise UserError(
                f"tools: two tools are named {tool.name!r}; the policy could not tell them apart"
            )
        tools.append(tool)
    return tools


def _limits(recipe: Recipe) -> Limits:
    box = recipe.sandbox
    try:
        return Limits(
            timeout_s=box.timeout_s,
            cpu_s=box.cpu_s,
            memory_mb=box.memory_mb,
            output_kb=box.output_kb,
            workers=box.workers,
        )
    except ValueError as error:
        raise UserError(f"sandbox: {error}") from error


def _imported(name: str) -> Tool:
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise UserError(
            f"tools: no tool named {name!r}.{_nearest(name, ['python'])} Choices: python; "
            "pkg.module:function for a function of yours; none"
        )
    found = _member(_module(module_name, name), attribute, name)
    if _is_tool(found):
        tool: Tool = found
        return tool
    if not callable(found):
        raise UserError(f"tools: {name} is a {type(found).__name__}, not a function or a tool")
    return function_tool(found)


def _module(module_name: str, name: str) -> Any:
    """Imports a module; those in the working directory are found too, after all others."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # the user's module may raise anything
        raise UserError(
            f"tools: {name}: importing {module_name} failed with {type(error).__name__}: {error}; "
            "it must be installed, or lie in the working directory or on PYTHONPATH"
        ) from error


def _member(module: Any, attribute: str, name: str) -> Any:
    try:
        return getattr(module, attribute)
    except AttributeError:
        there = [
            n for n, v in vars(module).items() if not n.startswith("_") and (callable(v) or _is_tool(v))
        ]
        raise UserError(
            f"tools: {name}: {module.__name__} has no {attribute!r}.{_nearest(attribute, there)} "
            f"Choices there: {', '.join(sorted(there)) or 'none'}"
        ) from None


def _is_tool(value: Any) -> bool:
    return not isinstance(value, type) and all(
        hasattr(value, part) for part in ("name", "close", "__call__")
    )


def _nearest(name: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(name, choices, n=1)
    return f" Did you mean {near[0]}?" if near else ""


__all__ = ["FunctionTool", "PythonTool", "Tool", "ToolContext", "function_tool", "load_tools"]
