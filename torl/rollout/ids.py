"""Between the protocol's text and ids: the ids of an observation, the ids under a span."""

import codecs

from torl.rollout import protocol
from torl.tokens import Vocabulary

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CHARACTERS = 64  # a token seldom has more: of an endless output only its ends are tokenised


def observation_ids(vocabulary: Vocabulary, turn_text: str, shown: str, budget: int) -> list[int]:
    """Ids of an observation, tokenised alone, at most ``budget`` of them.

    Of a long one head and tail are kept, two to one, with a line between them that says how
    much is missing; no character is split.
    """

    def framed(text: str) -> list[int]:
        return vocabulary.encode(protocol.observation_text(turn_text, text))

    reach = _CHARACTERS * budget
    ids = framed(shown) if len(shown) <= reach else None
    if ids is not None and len(ids) <= budget:
        return ids
    middle = len(shown) * 2 // 3
    head, tail = vocabulary.encode(shown[:middle][:reach]), vocabulary.encode(shown[middle:][-reach:])
    kept = budget
    while True:
        first = vocabulary.decode(head[: kept - kept // 3]).rstrip(_REPLACEMENT)
        last = vocabulary.decode(tail[max(0, len(tail) - kept // 3) :]).lstrip(_REPLACEMENT)
        missing = len(shown) - len(first) - len(last)
        ids = framed(f"{first}\n[... {missing} characters cut ...]\n{last}")
        if len(ids) <= budget or kept == 0:
            return ids[:budget]
        kept = max(0, kept - (len(ids) - budget))


def without_surrogates(text: str) -> str:
    """Text that has a UTF-8 form: halves of surrogate pairs, which no tokenizer takes, become "?"."""
    return text.encode("utf-8", errors="replace").decode()


def under(vocabulary: Vocabulary, ids: list[int], spans: list[tuple[int, int]]) -> list[int]:
    """Positions of the ids whose text touches one of the character spans of their text.

    A character's bytes may be spread over several ids: each of them touches it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found, begin = [], 0
    for position, token in enumerate(ids):
        whole = len(decoder.decode(vocabulary.bytes_of(token)))
        unfinished = bool(decoder.getstate()[0])
        if any(begin < stop and start < begin + whole + unfinished for start, stop in spans):
            found.append(position)
        begin += whole
    return found
