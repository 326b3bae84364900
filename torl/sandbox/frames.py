"""Messages between the trainer and its broker: a length of 4 bytes, then that much JSON."""

import json
import socket
import struct
from typing import Any

LENGTH = struct.Struct(">I")
MAX_FRAME = 64 << 20  # bytes; a longer one is no message of ours


class BrokenFrame(Exception):
    """The peer sent something that is no message."""


def pack(message: dict[str, Any]) -> bytes:
    """One frame. Any str survives, lone surrogates too. Raises BrokenFrame when it is too long."""
    data = json.dumps(message).encode("ascii")
    if len(data) > MAX_FRAME:
        raise BrokenFrame(f"a message of {len(data)} bytes is longer than {MAX_FRAME}")
    return LENGTH.pack(len(data)) + data


class Unpacker:
    """Takes bytes as they come, gives the messages that are complete."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._data = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that ``data`` completes. Raises BrokenFrame for what is no message."""
        self._data += data
        found = []
        while len(self._data) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._data)
            if size > self._limit:
                raise BrokenFrame(f"a frame announces {size} bytes; the limit is {self._limit}")
            end = LENGTH.size + size
            if len(self._data) < end:
                break
            found.append(_parse(bytes(self._data[LENGTH.size : end])))
            del self._data[:end]
        return found


def _parse(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BrokenFrame(f"a frame holds no JSON: {error}") from error
    if not isinstance(message, dict):
        raise BrokenFrame("a frame holds no JSON object")
    return message


def receive(peer: socket.socket, unpacker: Unpacker) -> list[dict[str, Any]] | None:
    """What has come: the messages complete by now, or None when the peer hung up.

    Raises BlockingIOError when nothing has come and ``peer`` does not block.
    """
    try:
        data = peer.recv(1 << 18)
    except BlockingIOError:
        raise
    except OSError:
        return None
    return unpacker.feed(data) if data else None
