"""From the recipe's names and import paths to reward functions."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torl.errors import UserError
from torl.rewards.builtin import executability

_BUILTIN: dict[str, Callable[..., Any]] = {"executability": executability}


@dataclass(frozen=True)
class WeightedReward:
    """One reward function, the name of its parts, and its weight in the sum."""

    name: str
    function: Callable[..., Any]
    weight: float


def resolve_rewards(
    rewards: Mapping[str, float],
    extra: Sequence[Callable[..., Any]],
    stateful: Mapping[str, Callable[..., Any]],
) -> list[WeightedReward]:
    """The recipe's reward functions in their order, then the extras that it does not name.

    Raises UserError for an unknown name, an import that fails, or a signature that does not
    take ``(trajectory, task)``.
    """
    given = {_name(function): function for function in extra}
    if len(given) < len(extra):
        raise UserError(f"rewards: two functions have one name; names given: {[_name(f) for f in extra]}")
    known = {**_BUILTIN, **stateful}
    clash = sorted(known.keys() & given.keys())
    if clash:
        raise UserError(f"rewards: {clash[0]!r} is a built-in reward; give your function another name")
    known |= given
    named = [
        WeightedReward(_part_name(key, rewards), _find(key, known), weight)
        for key, weight in rewards.items()
    ]
    rest = [WeightedReward(name, f, 1.0) for name, f in given.items() if name not in rewards]
    for part in named + rest:
        _check_signature(part)
    return named + rest


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _part_name(key: str, rewards: Mapping[str, float]) -> str:
    """``function`` for "pkg.module:function", or the whole path where that is ambiguous."""
    tail = key.rpartition(":")[2]
    ambiguous = sum(other.rpartition(":")[2] == tail for other in rewards) > 1
    return key if ambiguous or tail in _BUILTIN or tail == "correctness" else tail


def _find(key: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    if key in known:
        return known[key]
    if ":" not in key:
        raise UserError(
            f"rewards: no reward named {key!r}.{_nearest(key, list(known))} "
            f"Known: {', '.join(sorted(known))}; or give an import path, pkg.module:function"
        )
    module_name, _, function_name = key.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module may fail in any way while it is imported
        raise UserError(
            f"rewards: {key}: cannot import {module_name!r}: {type(error).__name__}: {error}. "
            "It must be importable from where torl runs (PYTHONPATH)"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UserError(
            f"rewards: {key}: {module_name} has no function {function_name!r}."
            f"{_nearest(function_name, names)} It has: {', '.join(sorted(names)) or 'none'}"
        )
    return function  # type: ignore[no-any-return]


def _nearest(name: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(name, choices, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def _check_signature(part: WeightedReward) -> None:
    try:
        inspect.signature(part.function).bind("trajectory", "task")
    except ValueError:  # a callable without a signature (C code): found out when it is called
        return
    except TypeError as error:
        raise UserError(
            f"rewards: {part.name} must take (trajectory, task), "
            f"but its signature is {inspect.signature(part.function)}: {error}"
        ) from error
