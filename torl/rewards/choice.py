r"""The letter of a multiple-choice answer: what a text chooses, or that it chooses nothing clear."""

import re
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from torl.errors import UserError
from torl.rewards.units import TEXT
from torl.types import Task

_WRAPPED = re.compile(r"\$(.*)\$|\*\*(.*)\*\*|\\boxed\s*\{(.*)\}", re.DOTALL)
_LETTER = re.compile(r"[(\[]?([A-Za-z])[)\]]?[.:]?")
_LETTER_AND_TEXT = re.compile(r"(?:[(\[]([A-Za-z])[)\]]|([A-Za-z])[).:])[.:]?\s+(.+)", re.DOTALL)
_ANOTHER = re.compile(r"[(\[][A-Za-z][)\]]|\b[A-Z][).:](?:\s|$)|\b(?:or|and)\s+[A-Z]\b|[,/&]\s*[A-Z]\b")


def chosen(text: str, options: Mapping[str, str]) -> str | None:
    r"""The letter that a text chooses, as a capital.

    ``B``, ``b``, ``(B)``, ``[B]``, ``B.``, ``B)``, ``B:``, ``(B) text``, ``B) text``, any of them in
    ``\text{}`` or dollars, and, where ``options`` are known, the text of an option (spaces and case do
    not count). None for all else and for what is ambiguous: two letters, a letter with another option's
    text, a text that two options have, a letter that is no option, a letter that is another one's text.
    """
    text = _unwrap(text)
    letters = set(_by_text(text, options))
    if match := _LETTER.fullmatch(text):
        if not letters or match[1].upper() in options:  # else it can only be meant as a text
            letters.add(match[1].upper())
    elif match := _LETTER_AND_TEXT.fullmatch(text):
        rest = _unwrap(match[3])
        if rest and not _by_text(rest, options) and _ANOTHER.search(rest):
            return None
        letters |= {(match[1] or match[2]).upper(), *_by_text(rest, options)}
    if len(letters) != 1 or (options and not letters <= options.keys()):
        return None
    return letters.pop()


def options_of(task: Task) -> dict[str, str]:
    """``task.meta["options"]``, a list or a mapping of letters to texts, by capital letter; {} without.

    Raises UserError naming the task when it is neither.
    """
    given: Any = task.meta.get("options")
    if given is None:
        return {}
    if isinstance(given, list) and len(given) <= len(ascii_uppercase):
        given = dict(zip(ascii_uppercase, given, strict=False))
    if not isinstance(given, Mapping) or not all(re.fullmatch("[A-Za-z]", str(key)) for key in given):
        raise UserError(
            f"task {task.id}: meta['options'] must be a list of at most 26 texts, or a mapping of letters "
            f"to texts, not {str(given)[:80]}"
        )
    return {str(letter).upper(): str(text) for letter, text in given.items()}


def right_letter(task: Task, options: Mapping[str, str]) -> str:
    """The letter of the task's answer. A single letter is one even where it is an option's text, too.

    Raises UserError naming the task when it chooses nothing.
    """
    bare = _LETTER.fullmatch(_unwrap(task.answer))
    letter = bare[1].upper() if bare else chosen(task.answer, options)
    if letter is None or (options and letter not in options):
        known = f" (its options: {', '.join(options)})" if options else ""
        raise UserError(
            f"task {task.id}: correctness.how=choice, and its answer {task.answer[:80]!r} is no letter "
            f"of a choice{known}; give the letter, or the options in meta['options']"
        )
    return letter


def _by_text(text: str, options: Mapping[str, str]) -> list[str]:
    return [letter for letter, option in options.items() if _plain(option) == _plain(text)]


def _plain(text: str) -> str:
    return " ".join(_unwrap(text).split()).rstrip(".").casefold()


def _unwrap(text: str) -> str:
    """Without LaTeX's text commands, and without spaces, dollars or stars around the whole."""
    text = re.sub(TEXT, r"\1", text).replace("\\ ", " ").strip()
    while (match := _WRAPPED.fullmatch(text)) is not None:
        text = next(group for group in match.groups() if group is not None).strip()
    return text
