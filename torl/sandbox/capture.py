"""Keeps the head and the tail of a stream, and counts the rest."""

import codecs


class Capture:
    """At most ``cap`` bytes of a stream: its first 3/4, and its last 1/4.

    The memory used is below twice ``cap``, however much is fed.
    """

    def __init__(self, cap: int) -> None:
        self.seen = 0  # bytes fed
        self._head_room = cap - cap // 4
        self._tail_room = cap // 4
        self._head = bytearray()
        self._tail = bytearray()

    def feed(self, data: bytes) -> None:
        self.seen += len(data)
        room = self._head_room - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_room:
            self._trim()

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_room)]

    def text(self) -> tuple[str, int]:
        """The kept text, and how many bytes were cut out of it; no character is split.

        Invalid UTF-8 is replaced. Where bytes were cut stands a note with their number.
        """
        self._trim()
        return join(bytes(self._head), bytes(self._tail), self.seen)


def join(head: bytes, tail: bytes, seen: int) -> tuple[str, int]:
    """The text of the first and the last bytes of ``seen``, and how many were cut out of it."""
    if len(head) + len(tail) >= seen:
        return (head + tail).decode("utf-8", "replace"), 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    kept = decoder.decode(head)
    split = len(decoder.getstate()[0])  # bytes of a character that the cut went through
    rest = tail.lstrip(bytes(range(0x80, 0xC0))) if _continues(tail) else tail
    cut = seen - (len(head) - split) - len(rest)
    return f"{kept}\n[... {cut} bytes cut ...]\n{rest.decode('utf-8', 'replace')}", cut


def _continues(data: bytes) -> bool:
    """Whether the data begins inside a character (1 to 3 continuation bytes)."""
    start = len(data[:4]) - len(data[:4].lstrip(bytes(range(0x80, 0xC0))))
    return 0 < start < 4
