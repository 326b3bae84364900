"""What of a step trains, and what does not, whatever its reward. Pure functions.

A masked trajectory has no token in the loss and stays in its group, where its reward still counts for the
others' advantages. To add a mask: a function that says whether it applies, its entry in ``MASKS``, its name
in settings.py.
"""

import random
from collections.abc import Callable

from torl.rewards.answers import boxes
from torl.rewards.soundness import format_kept, no_repetition
from torl.rollout.protocol import segments
from torl.types import Group, Trajectory

Mask = Callable[[Trajectory], bool]


def void_turn(trajectory: Trajectory) -> bool:
    """A turn of it has neither a code block nor a boxed answer: the policy went on to nothing, as it does
    when improbable tokens after an observation have led it astray. Source: SimpleTIR, arXiv 2509.02479."""
    return any(_is_void(turn.text) for turn in trajectory.turns)


def invented_output(trajectory: Trajectory) -> bool:
    """The policy wrote an output block itself. The block's own ids never train; this takes out the rest,
    which may rest on it. Source: ZeroTIR's filter of trajectories, arXiv 2505.07773."""
    return trajectory.invented_outputs > 0


def repetition(trajectory: Trajectory) -> bool:
    """More than 10% of the words of its prose lie in repeated runs of 10 words
    (torl/rewards/soundness.py)."""
    return not no_repetition(trajectory)


MASKS: dict[str, Mask] = {
    "void_turn": void_turn,
    "invented_output": invented_output,
    "repetition": repetition,
}


def resample_on_correct(group: Group, keep: int, seed: str) -> Group:
    """Of an oversampled group ``keep`` trajectories: correct and incorrect ones in the proportion in which
    they came (to the nearest whole number, and of each that there is at least one), the incorrect ones by
    chance alone, the correct ones by chance with a weight of 1 / (0.1 + faults).

        faults = failed calls / executed calls (0.5 without an executed call) + 1 where the format is broken

    So what is learnt from success is learnt from clean success, and failures stay as varied as they were.
    Source: GRPO-RoC, rStar2-Agent, arXiv 2508.20722. ``seed`` names the choice, so that it can be made
    again.
    """
    right = [t for t in group.trajectories if t.correct]
    wrong = [t for t in group.trajectories if not t.correct]
    if len(right) + len(wrong) <= keep:
        return group
    share = round(keep * len(right) / (len(right) + len(wrong)))
    from_right = min(max(share, bool(right)), keep - bool(wrong), len(right))
    draw = random.Random(seed)
    # Weighed sampling without replacement: the largest of u^(1/w) (Efraimidis and Spirakis 2006).
    keys = {id(t): draw.random() ** (0.1 + faults(t)) for t in right}
    chosen = sorted(right, key=lambda t: -keys[id(t)])[:from_right]
    chosen += draw.sample(wrong, min(keep - from_right, len(wrong)))
    kept = {id(t) for t in chosen}
    return Group(group.task, [t for t in group.trajectories if id(t) in kept], group.dropped)


def faults(trajectory: Trajectory) -> float:
    """0 for a trajectory whose calls all passed and whose format is kept, up to 2."""
    executed = [call for call in trajectory.calls if call.executed]
    failed = sum(not call.ok for call in executed) / len(executed) if executed else 0.5
    return failed + (0.0 if format_kept(trajectory) else 1.0)


def has_signal(group: Group) -> bool:
    """Its rewards are not all the same."""
    return len(set(group.rewards)) > 1


def _is_void(text: str) -> bool:
    parts = segments(text)
    has_code = any(part.kind == "code" for part in parts)
    return not has_code and not any(part.kind == "prose" and boxes(part.body) for part in parts)
