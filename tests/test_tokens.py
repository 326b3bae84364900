"""Ids to bytes to text and back, on two kinds of tokenizers; stop strings across tokens."""

import itertools
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import CONTROL, SPECIAL, byte_level_tokenizer, sentencepiece_tokenizer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from torl.errors import UserError
from torl.tokens import StopFinder, Vocabulary

TOKENIZERS: dict[str, Any] = {
    "byte-level": byte_level_tokenizer(),
    "byte-level, composing": byte_level_tokenizer(nfc=True),
    "sentencepiece, space by normalizer": sentencepiece_tokenizer(prepend="normalizer"),
    "sentencepiece, space by metaspace": sentencepiece_tokenizer(prepend="metaspace"),
    "sentencepiece, no space": sentencepiece_tokenizer(prepend="nobody"),
}
VOCABULARIES = {name: Vocabulary(tokenizer) for name, tokenizer in TOKENIZERS.items()}
every = pytest.mark.parametrize("name", TOKENIZERS)
fast = settings(max_examples=80, deadline=None)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
spelled = st.lists(
    st.sampled_from([*SPECIAL, CONTROL, "<s>", "</s>", "<unk>", "<0x41>"]) | text, max_size=6
)


def ids_of(vocabulary: Vocabulary, max_size: int = 12) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, vocabulary.size - 1), max_size=max_size)


@pytest.mark.parametrize("name", ["byte-level", "byte-level, composing"])
@given(data=st.data())
@fast
def test_bytes_of_random_ids_decode_as_the_tokenizer_decodes(name: str, data: st.DataObject) -> None:
    """Specials among them, and characters cut short, which both show as U+FFFD."""
    ids = data.draw(ids_of(VOCABULARIES[name]))
    assert VOCABULARIES[name].decode(ids) == TOKENIZERS[name].decode(ids)


@pytest.mark.parametrize("name", [n for n in TOKENIZERS if n.startswith("sentencepiece")])
@given(data=st.data())
@fast
def test_bytes_of_random_ids_decode_as_sentencepiece_decodes(name: str, data: st.DataObject) -> None:
    """Behind a first character, whose leading space the tokenizer would drop. Where a run of
    byte ids is no text, it shows a U+FFFD a byte and Vocabulary one a character cut short."""
    vocabulary, tokenizer = VOCABULARIES[name], TOKENIZERS[name]
    character = st.characters(exclude_categories=["Cs"]).map(
        lambda c: [tokenizer.convert_tokens_to_ids(f"<0x{b:02X}>") for b in c.encode()]
    )
    pieces = st.lists(ids_of(vocabulary, 3) | character, max_size=6)
    ids = [tokenizer.convert_tokens_to_ids("e"), *itertools.chain(*data.draw(pieces))]
    theirs = tokenizer.decode(ids)
    if "\N{REPLACEMENT CHARACTER}" in theirs:
        assert "\N{REPLACEMENT CHARACTER}" in vocabulary.decode(ids)
    else:
        assert vocabulary.decode(ids) == theirs


@every
@given(pieces=spelled)
@example(pieces=["", " ", "  x ", "\n", "\x00", "\r\n"])
@example(pieces=[*SPECIAL, CONTROL])
@example(pieces=["e\u0301", "é"])
@fast
def test_encoded_text_comes_back_and_is_never_special(name: str, pieces: list[str]) -> None:
    tokenizer, vocabulary = TOKENIZERS[name], VOCABULARIES[name]
    written = "".join(pieces)
    ids = vocabulary.encode(written)
    assert not set(ids) & {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    read = vocabulary.decode(ids)
    if "composing" in name:
        assert read == unicodedata.normalize("NFC", written)
    elif "sentencepiece" in name:
        assert read == written.replace("▁", " ")
    else:
        assert read == written


@every
def test_encoding_leaves_the_tokenizer_as_it_is(name: str) -> None:
    """Another thread may be encoding a prompt, in which special tokens are special."""
    tokenizer, vocabulary = TOKENIZERS[name], VOCABULARIES[name]
    prompt = f"{tokenizer.eos_token}Hello"
    before = tokenizer.backend_tokenizer.to_str()
    ids = tokenizer(prompt).input_ids
    vocabulary.encode(prompt)
    assert vocabulary.encode_prompt(prompt) == ids
    assert tokenizer.eos_token_id in ids
    assert tokenizer.backend_tokenizer.to_str() == before


def test_encoding_cuts_and_pads_nothing() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.decode(vocabulary.encode("more than three ids")) == "more than three ids"


def test_special_tokens_have_the_bytes_of_their_text() -> None:
    tokenizer, vocabulary = TOKENIZERS["byte-level"], VOCABULARIES["byte-level"]
    for token in [*SPECIAL, CONTROL]:
        assert vocabulary.bytes_of(tokenizer.convert_tokens_to_ids(token)) == token.encode()
    spaced = byte_level_tokenizer()
    spaced.add_special_tokens({"additional_special_tokens": ["<a b>", "<｜end▁of｜>"]})
    vocabulary = Vocabulary(spaced)
    assert vocabulary.decode([vocabulary.size - 2, vocabulary.size - 1]) == "<a b><｜end▁of｜>"


def test_ids_beyond_the_tokenizer_have_no_text() -> None:
    vocabulary = VOCABULARIES["byte-level"]
    assert vocabulary.bytes_of(vocabulary.size) == b""
    assert vocabulary.decode([vocabulary.size + 7]) == ""


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(UserError, match="neither a byte-level nor a SentencePiece"):
        Vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend))


# Stop strings


def first_stop(written: bytes, stop: list[str]) -> tuple[int, set[str]] | None:
    """Brute force: the shortest prefix that ends in a stop string, and which do."""
    for end in range(len(written) + 1):
        found = {s for s in stop if written[:end].endswith(s.encode())}
        if found:
            return end, found
    return None


stops = st.lists(st.text("ab`é", min_size=1, max_size=5), max_size=4)


@given(
    written=st.text("ab`é\n", max_size=40),
    stop=stops,
    cuts=st.lists(st.integers(0, 60), max_size=15),
)
@settings(max_examples=400, deadline=None)
def test_the_first_stop_is_found_however_the_text_is_cut(
    written: str, stop: list[str], cuts: list[int]
) -> None:
    """Pieces may be empty and may cut characters in two."""
    data = written.encode()
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    expected = first_stop(data, stop)
    finder = StopFinder(stop)
    for begin, end in itertools.pairwise(edges):
        found = finder.push(data[begin:end])
        if found is not None:
            assert expected is not None
            assert begin < expected[0] <= end
            assert found in expected[1]
            return
    assert expected is None


@every
@given(before=st.text("ab`\n é", max_size=12), after=text)
@fast
def test_a_marker_in_encoded_text_is_found_in_its_id(name: str, before: str, after: str) -> None:
    vocabulary = VOCABULARIES[name]
    ids = vocabulary.encode(f"{before}\n```output\n{after}")
    finder = StopFinder(["```output"])
    for n, token in enumerate(ids, 1):
        if finder.push(vocabulary.bytes_of(token)):
            assert "```output" in vocabulary.decode(ids[:n])
            assert "```output" not in vocabulary.decode(ids[: n - 1])
            return
    raise AssertionError("the marker was not found")


def test_without_stop_strings_nothing_stops() -> None:
    assert StopFinder([]).push(b"```output") is None
