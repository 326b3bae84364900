"""Any Python function as a tool. It runs in this process: it is trusted, the policy's text is not."""

import asyncio
import inspect
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torl.errors import Bug, ModelMistake, UserError, WorldFault
from torl.threads import in_thread
from torl.tools.base import ToolContext
from torl.types import ToolResult


def function_tool(fn: Callable[..., Any], timeout_s: float = 10.0) -> "FunctionTool":
    """Makes a tool out of ``fn(text)`` or ``fn(text, context)``, plain or async.

    Its name is the function's, in lower case as fences are read. A plain function runs in a
    thread. What it returns is shown: a ToolResult as it is, anything else by str().

    - ModelMistake, raised by the function: its text is shown to the policy, status "error".
    - Any other exception, or no answer within ``timeout_s``: a WorldFault. A broken tool must
      not train the model.

    Raises UserError for a function that cannot be called so, or has no usable name.
    """
    return FunctionTool(fn, timeout_s)


class FunctionTool:
    """See function_tool."""

    def __init__(self, fn: Callable[..., Any], timeout_s: float) -> None:
        self.name = _name(fn)
        self._fn = fn
        self._timeout_s = timeout_s
        self._wants_context = _wants_context(fn)
        self._is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
            getattr(fn, "__call__", None)  # noqa: B004 (an object with an async __call__)
        )

    async def __call__(self, text: str, context: ToolContext) -> ToolResult:
        started = time.monotonic()
        try:
            answer = await self._answer((text, context) if self._wants_context else (text,))
        except ModelMistake as mistake:
            answer = ToolResult(str(mistake), status="error")
        except (WorldFault, Bug):
            raise
        except (Exception, SystemExit) as error:
            raise WorldFault(f"tool {self.name!r} failed: {type(error).__name__}: {error}") from error
        return replace(answer, run_s=answer.run_s or time.monotonic() - started)

    async def close(self) -> None:
        """Nothing is held."""

    async def _answer(self, arguments: tuple[Any, ...]) -> ToolResult:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                value = self._fn(*arguments) if self._is_async else await in_thread(self._fn, *arguments)
                if inspect.isawaitable(value):
                    value = await value
        except TimeoutError as error:
            if not limit.expired():  # the function's own
                raise
            message = f"tool {self.name!r} gave no answer within {self._timeout_s:g} s"
            raise WorldFault(message) from error
        return value if isinstance(value, ToolResult) else ToolResult(str(value))


def _name(fn: Callable[..., Any]) -> str:
    name = str(getattr(fn, "__name__", "")).lower()
    if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("output") or name in ("py", "python3"):
        raise UserError(
            f"{fn!r} cannot be a tool under the name {name!r}: the policy asks for a tool by its name "
            "behind a fence; define it with def and a name other than output, py, python3"
        )
    return name


def _wants_context(fn: Callable[..., Any]) -> bool:
    """Whether the function takes a second parameter. Raises UserError when it cannot be called."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-ins tell nothing of their parameters
        return False
    parameters = [p for p in signature.parameters.values() if p.kind in _POSITIONAL]
    second = len(parameters) > 1 and (
        parameters[1].default is parameters[1].empty or parameters[1].name == "context"
    )
    try:
        signature.bind(*(["text", "context"] if second else ["text"]))
    except TypeError as error:
        raise UserError(
            f"{fn!r}{signature} cannot be a tool ({error}); it must take (text) or (text, context)"
        ) from error
    return second


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
__all__ = ["FunctionTool", "function_tool"]
