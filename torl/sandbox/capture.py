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
        del self._tail[: len(self._tail) - self._tail_room]

    def text(self) -> tuple[str, int]:
        """The kept text, and how many bytes were cut out of it; no character is split.

        Invalid UTF-8 is replaced. Where bytes were cut stands a note with their number.
        """
        self._trim()
        if len(self._head) + len(self._tail) == self.seen:
            return (self._head + self._tail).decode("utf-8", "replace"), 0
        head = codecs.getincrementaldecoder("utf-8")("replace")
        kept = head.decode(bytes(self._head))
        split = len(head.getstate()[0])  # bytes of a character that the cut went through
        tail = bytes(self._tail)
        rest = tail.lstrip(bytes(range(0x80, 0xC0))) if _continues(tail) else tail
        cut = self.seen - (len(self._head) - split) - len(rest)
        return f"{kept}\n[... {cut} bytes cut ...]\n{rest.decode('utf-8', 'replace')}", cut


def _continues(data: bytes) -> bool:
    """Whether the data begins inside a character (1 to 3 continuation bytes)."""
    start = len(data[:4]) - len(data[:4].lstrip(bytes(range(0x80, 0xC0))))
    return 0 < start < 4
