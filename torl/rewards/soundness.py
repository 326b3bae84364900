"""Cheap checks of how an answer was come by: the reward function ``soundness``.

Each is a pure function of a trajectory that says whether it is sound. They look at the form, not at the
thought: docs/rewards.md says what each of them cannot see. To add one: a function, its entry in ``CHECKS``,
its name in torl/rewards/settings.py.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from torl.rewards.answers import boxes, final_answer, prose
from torl.rewards.calls import what_was_read
from torl.rewards.mentions import any_said, numbers
from torl.rewards.numeric import number
from torl.rollout.protocol import Segment, segments
from torl.types import Task, Trajectory, Turn

if TYPE_CHECKING:
    from torl.rewards.settings import Soundness

VIOLATED = -1.0

BEHIND_ANSWER = 100  # characters of prose, white space apart: a closing sentence, an end-of-turn token
NGRAM = 10  # words
MOST_REPEATED = 0.10  # of the words: Gopher's rule for 10-grams (arXiv 2112.11446, table A1)
LEAST_WORDS = 40  # of a text that can be said to repeat itself
MOST_FOREIGN = 0.10  # of the letters
LEAST_LETTERS = 20

_EAST_ASIAN = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_EAST_ASIAN}]|[^\s{_EAST_ASIAN}]+")
_LATEX = re.compile(r"\\[a-zA-Z]+|<\|[^|<>]*\|>")
_LETTERS = re.compile(r"[^\W\d_]+")
_SCRIPTS = {"CJK": "CJK", "HIRAGANA": "CJK", "KATAKANA": "CJK"}
_SIGNS = {
    "GREEK",
    "MATHEMATICAL",
    "SCRIPT",
    "BLACK-LETTER",
    "DOUBLE-STRUCK",
    "MICRO",
    "SUPERSCRIPT",
    "MODIFIER",
}
_ROLE = re.compile(r"^[ \t]*(?:User|Human|Assistant|System)[ \t]*:", re.MULTILINE)
_CHAT = re.compile(r"<\|(?:im_start|start_header_id|user|assistant|system)\|>|<start_of_turn>|\[/?INST\]")


class SoundnessReward:
    """A part for each check that ``soundness.checks`` names: 0 when it is kept, -1 when violated."""

    def __init__(self, config: "Soundness") -> None:
        self.config = config

    def __call__(self, trajectory: Trajectory, task: Task) -> dict[str, float]:  # noqa: ARG002
        return {name: 0.0 if CHECKS[name](trajectory) else VIOLATED for name in self.config.checks}


def answer_once(trajectory: Trajectory) -> bool:
    """The policy's prose has exactly one closed box, and behind it come no code, no output block and at
    most 100 characters of prose (white space apart)."""
    parts = list(_parts(trajectory))
    found = [(n, box) for n, part in enumerate(parts) if part.kind == "prose" for box in boxes(part.body)]
    if len(found) != 1:
        return False
    place, box = found[0]
    behind = parts[place].body[box.behind :] + "".join(part.body for part in parts[place + 1 :])
    only_prose = all(part.kind == "prose" for part in parts[place + 1 :])
    return only_prose and len("".join(behind.split())) <= BEHIND_ANSWER


def agrees_with_tool(trajectory: Trajectory) -> bool:
    """A number that is given as the answer straight from the last passed call is one that the call showed.

    It counts as straight from it when all numbers in the prose between the observation and the answer are
    the observation's own or the answer itself: the policy then computed nothing more. Compared are sizes,
    rounded as the answer is. Sound as well: no passed call, no number in its observation, an answer that is
    no number, code written after it.
    """
    last = max((n for n, turn in enumerate(trajectory.turns) if _passed(turn)), default=None)
    answer = final_answer(trajectory) or ""
    value, given = number(answer), numbers(answer)
    if last is None or value is None:
        return True
    observed = numbers(what_was_read(trajectory.turns[last]))
    later = [part for turn in trajectory.turns[last + 1 :] for part in segments(turn.text)]
    said = numbers(" ".join(part.body for part in later))
    only_prose = all(part.kind == "prose" for part in later)
    if not observed or not only_prose or not set(given) <= set(said):  # or the answer stands before it
        return True
    straight = all(shown in given or any_said(observed, [shown]) for shown in said)
    agrees = any_said(observed, given) or abs(value) in {Fraction(shown.value) for shown in observed}
    return agrees or not straight


def no_invented_output(trajectory: Trajectory) -> bool:
    """The policy wrote no output block with content of its own."""
    return trajectory.invented_outputs == 0


def no_repetition(trajectory: Trajectory) -> bool:
    """At most 10% of the words of the policy's prose lie in repeated runs of 10 words."""
    return repeated_share(" ".join(prose(trajectory))) <= MOST_REPEATED


def repeated_share(text: str) -> float:
    """Share of the words that lie in a run of 10 words which has occurred before, overlaps counted once.

    Gopher's measure of duplicate n-grams (arXiv 2112.11446, A.1) in words in place of characters. A
    loop of any period shows in it. 0 for texts of fewer than 40 words. A word is what stands between
    spaces; Chinese, Japanese and Korean characters are words each.
    """
    words = _WORD.findall(text)
    if len(words) < LEAST_WORDS:
        return 0.0
    seen: set[tuple[str, ...]] = set()
    repeated = place = 0
    while place + NGRAM <= len(words):
        gram = tuple(words[place : place + NGRAM])
        if gram in seen:
            repeated += NGRAM
            place += NGRAM
        else:
            seen.add(gram)
            place += 1
    return repeated / len(words)


def language_kept(trajectory: Trajectory) -> bool:
    """At most 10% of the letters of the policy's prose are of scripts that the problem does not use
    (for 10% of its own letters or more).

    DeepSeek-R1's reward for one language (arXiv 2501.12948, section 2.3.2), by scripts: languages
    that share one are not told apart. Not counted: LaTeX commands, Greek and mathematical letters, Latin
    words of one or two letters (variables). Sound as well: fewer than 20 letters, a problem without any.
    """
    asked = _scripts(trajectory.task.problem)
    own = {script for script, count in asked.items() if count >= MOST_FOREIGN * sum(asked.values())}
    written = _scripts(" ".join(prose(trajectory)))
    total = sum(written.values())
    foreign = sum(count for script, count in written.items() if script not in own)
    return not own or total < LEAST_LETTERS or foreign <= MOST_FOREIGN * total


def format_kept(trajectory: Trajectory) -> bool:
    """Every code block is closed (by a fence, or by the output block that asks to run it), every request
    for a call could be read, and the prose plays no other role: no line that begins with ``User:`` or the
    like, no marker of a chat template."""
    malformed = any(call.status == "malformed" for call in trajectory.calls)
    balanced = all(_balanced(turn) for turn in trajectory.turns)
    roles = any(_ROLE.search(text) or _CHAT.search(text) for text in prose(trajectory))
    return balanced and not malformed and not roles


CHECKS: dict[str, Callable[[Trajectory], bool]] = {
    "answer_once": answer_once,
    "agrees_with_tool": agrees_with_tool,
    "no_invented_output": no_invented_output,
    "no_repetition": no_repetition,
    "language_kept": language_kept,
    "format_kept": format_kept,
}


def _parts(trajectory: Trajectory) -> Iterator[Segment]:
    for turn in trajectory.turns:
        yield from segments(turn.text)


def _passed(turn: Turn) -> bool:
    return turn.result is not None and turn.result.executed and turn.result.ok


def _balanced(turn: Turn) -> bool:
    """Only a block that the next one, or the environment's answer, ends may lack its fence."""
    parts = segments(turn.text)
    for n, part in enumerate(parts):
        last = n == len(parts) - 1
        if part.kind == "code" and not part.closed and (last or parts[n + 1].kind != "output"):
            return False
        if part.kind == "output" and not part.closed and not (last and turn.result is not None):
            return False
    return True


def _scripts(text: str) -> Counter[str]:
    """How many letters of a text belong to which script. Variables, commands and signs are left out."""
    found: Counter[str] = Counter()
    for word in _LETTERS.findall(_LATEX.sub(" ", text)):
        for script, letters in groupby(word, _script):
            count = sum(1 for _ in letters)
            if script and (script != "LATIN" or count > 2):
                found[script] += count
    return found


@lru_cache(4096)
def _script(letter: str) -> str:
    """ "LATIN", "CYRILLIC", ...; "" for letters that mathematics uses everywhere."""
    first = unicodedata.name(letter, "").partition(" ")[0]
    return "" if first in _SIGNS else _SCRIPTS.get(first, first)
