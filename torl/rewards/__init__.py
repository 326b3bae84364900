"""What a trajectory is worth: correctness, tool use, and whatever the user adds.

``Judge`` is all that the rest of torl uses. It is loaded on first use, so that the
verifier's worker, which lives in this package, starts without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torl.rewards.judge import Judge, RewardFunction

__all__ = ["Judge", "RewardFunction"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torl.rewards import judge

    return getattr(judge, name)
