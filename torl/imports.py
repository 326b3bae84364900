"""From the names in a recipe to the user's own functions."""

import difflib
import importlib
import os
import sys
from typing import Any

from torl.errors import UserError


def nearest(name: str, choices: list[str]) -> str:
    """`` Did you mean x?`` for an error message, or nothing when no choice is near."""
    near = difflib.get_close_matches(name, choices, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def import_object(path: str, key: str) -> Any:
    """What "pkg.module:name" names. Modules in the working directory are found too, after all
    others. Raises UserError, beginning with the recipe's ``key``, with choices and remedy."""
    module_name, colon, attribute = path.partition(":")
    if not (colon and module_name and attribute):
        raise UserError(f"{key}: {path!r} is not an import path of the form pkg.module:function")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's module may raise anything
        raise UserError(
            f"{key}: {path}: importing {module_name} failed with {type(error).__name__}: {error}; "
            "it must be installed, or lie in the working directory or on PYTHONPATH"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        there = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
        raise UserError(
            f"{key}: {path}: {module_name} has no {attribute!r}.{nearest(attribute, there)} "
            f"Choices there: {', '.join(there) or 'none'}"
        ) from None
