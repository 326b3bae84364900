"""Ids to bytes to text, exactly.

Text is derived from ids, never the other way round, and incrementally: a stop marker may end
inside a token, and a token may end inside a character. So each id has its bytes, and the text
of any ids is the concatenation of their bytes, decoded.
"""

import json
import re
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from torl.errors import UserError

_NO_SPACE_IN_FRONT = {"prepend": "", "prepend_scheme": "never", "add_prefix_space": False}
_BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


class Vocabulary:
    """A tokenizer seen as a table: id to bytes. Special tokens have the bytes of their text.

    ``size`` is the number of ids that have a text; a model may have more logits than that.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.size = max(tokenizer.get_vocab().values()) + 1
        self._plain = _plain_backend(tokenizer)
        special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
        to_bytes = _token_reader(tokenizer)
        tokens = tokenizer.convert_ids_to_tokens(list(range(self.size)))
        self._bytes = [
            (token or "").encode() if number in special else to_bytes(token or "")
            for number, token in enumerate(tokens)
        ]

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one id; empty for ids beyond the tokenizer (padding of the logits)."""
        return self._bytes[token_id] if token_id < self.size else b""

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens included; an incomplete character becomes U+FFFD."""
        return b"".join(map(self.bytes_of, ids)).decode("utf-8", errors="replace")

    def encode(self, text: str) -> list[int]:
        """Ids of text that stands by itself: nothing is added, and no text, whatever it
        spells, becomes a special token (a tool may print ``<|im_end|>``).

        ``decode`` gives the text back, but for what the tokenizer itself makes alike: Unicode
        forms (Qwen composes them, NFC), U+2581 and the space (SentencePiece).
        """
        if self._plain is None:
            return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a prompt as the tokenizer wants to begin one (a BOS id, where it has one);
        special tokens spelled in a template are special."""
        return list(self.tokenizer(text).input_ids)


def _plain_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """A copy of the tokenizer's engine that encodes text and nothing else: it knows no added
    tokens, puts no space in front (SentencePiece), and cuts and pads nothing."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    plain = json.loads(backend.to_str())
    plain |= {"added_tokens": [], "truncation": None, "padding": None}
    parts = _parts(plain["normalizer"], "normalizers") + _parts(plain["pre_tokenizer"], "pretokenizers")
    for part in parts:
        part |= {key: value for key, value in _NO_SPACE_IN_FRONT.items() if key in part}
    return Tokenizer.from_str(json.dumps(plain))


def _parts(component: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """A component of a tokenizer's file, as the list of what it is made of."""
    if component is None:
        return []
    return [inner for part in component.get(name, []) for inner in _parts(part, name)] or [component]


def _token_reader(tokenizer: PreTrainedTokenizerBase) -> Any:
    """The function from a token's spelling to its bytes, chosen by the tokenizer's decoder."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.dumps(json.loads(backend.to_str())["decoder"]) if backend is not None else ""
    if "ByteLevel" in decoder:
        table = _byte_level_alphabet()
        return lambda token: b"".join(table.get(c, c.encode()) for c in token)
    if "Metaspace" in decoder or "▁" in decoder or "ByteFallback" in decoder:
        return _sentencepiece_bytes
    raise UserError(
        f"{type(tokenizer).__name__} is neither a byte-level nor a SentencePiece tokenizer, so the text "
        "of single tokens is not known. Use a model with one of these (Llama, Qwen, SmolLM, Mistral, ...)."
    )


def _sentencepiece_bytes(token: str) -> bytes:
    byte = _BYTE_TOKEN.match(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _byte_level_alphabet() -> dict[str, bytes]:
    """GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 characters stand for
    themselves, the others for U+0100 upward in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    table = {chr(b): bytes([b]) for b in printable}
    table |= {chr(256 + n): bytes([b]) for n, b in enumerate(others)}
    return table


class StopFinder:
    """Finds the first stop string in text that arrives token by token.

    >>> finder = StopFinder(["```output"])
    >>> finder.push(b"``"), finder.push(b"`out"), finder.push(b"put\\n")
    (None, None, '```output')
    """

    def __init__(self, stop: list[str]) -> None:
        self._stop = [(s, s.encode()) for s in stop]
        self._longest = max((len(b) for _, b in self._stop), default=0)
        self._tail = b""

    def push(self, piece: bytes) -> str | None:
        """The stop string that ends in ``piece``, if any; of several, the one that ends first."""
        text = self._tail + piece
        ends = [(text.find(b) + len(b), s) for s, b in self._stop if b in text]
        self._tail = text[-(self._longest - 1) :] if self._longest > 1 else b""
        return min(ends)[1] if ends else None
