"""From the recipe's names and import paths to reward functions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torl.errors import UserError
from torl.imports import import_object, nearest
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
        WeightedReward(_part_name(key, rewards, stateful), _find(key, known), weight)
        for key, weight in rewards.items()
    ]
    rest = [WeightedReward(name, f, 1.0) for name, f in given.items() if name not in rewards]
    for part in named + rest:
        _check_signature(part)
    return named + rest


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _part_name(key: str, rewards: Mapping[str, float], stateful: Mapping[str, object]) -> str:
    """``function`` for "pkg.module:function", or the whole path where that is ambiguous."""
    tail = key.rpartition(":")[2]
    ambiguous = sum(other.rpartition(":")[2] == tail for other in rewards) > 1
    return key if ambiguous or tail in {*_BUILTIN, *stateful} else tail


def _find(key: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    if key in known:
        return known[key]
    if ":" not in key:
        raise UserError(
            f"rewards: no reward named {key!r}.{nearest(key, list(known))} "
            f"Known: {', '.join(sorted(known))}; or give an import path, pkg.module:function"
        )
    function = import_object(key, "rewards")
    if not callable(function):
        raise UserError(f"rewards: {key} is a {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


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
