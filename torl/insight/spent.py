"""Where a step's time goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

KINDS = ("decode", "prefill", "tools", "reward")
"""What may go on at once, first the one that the time is counted for: a tool that runs while sequences
decode costs nothing."""


class Spent:
    """Seconds by kind, of which one at a time counts. Used on one thread."""

    def __init__(self) -> None:
        self._going_on = dict.fromkeys(KINDS, 0)
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._since = time.monotonic()

    @contextmanager
    def on(self, kind: str) -> Iterator[None]:
        """Counts the time inside for ``kind``, unless one of an earlier kind goes on too."""
        self._settle()
        self._going_on[kind] += 1
        try:
            yield
        finally:
            self._settle()
            self._going_on[kind] -= 1

    def take(self) -> dict[str, float]:
        """The seconds since the last time, by kind."""
        self._settle()
        seconds, self._seconds = self._seconds, dict.fromkeys(KINDS, 0.0)
        return seconds

    def move(self, seconds: float, source: str, target: str) -> None:
        """Counts time of one kind for another."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def _settle(self) -> None:
        now = time.monotonic()
        kind = next((k for k in KINDS if self._going_on[k]), None)
        if kind is not None:
            self._seconds[kind] += now - self._since
        self._since = now
