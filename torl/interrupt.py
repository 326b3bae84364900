"""Ctrl-C and SIGTERM: finish the step, save, stop."""

import signal
from contextlib import suppress
from types import FrameType
from typing import Any


class Stop:
    """Ctrl-C, or SIGTERM, asks to stop after this step; a second one stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        with suppress(ValueError):  # not in the main thread: the caller's business
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.asked = True
        print("\nFinishing this step, then saving. Once more stops at once.", flush=True)
        signal.signal(number, self._before.get(number, signal.SIG_DFL))
