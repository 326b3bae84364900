"""How the sandbox has been doing: counts and latencies."""

import threading
from collections import Counter
from typing import get_args

from torl.sandbox.types import Result, Status


class Health:
    """Counts results as they come. ``snapshot`` gives what came since the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.restarts = 0  # of the broker or of a zygote
        self.pauses = 0  # times that no worker could be had
        self._clear()

    def _clear(self) -> None:
        self._statuses: Counter[str] = Counter()
        self._retries = 0
        self._run_s: list[float] = []
        self._queue_s: list[float] = []

    def count(self, result: Result) -> None:
        with self._lock:
            self._statuses[result.status] += 1
            self._retries += result.retries
            if result.status != "sandbox_error":
                self._run_s.append(result.run_s)
                self._queue_s.append(result.queue_s)

    def snapshot(self) -> dict[str, float]:
        """Calls, how many of them ended how, retries, restarts, and quantiles in seconds."""
        with self._lock:
            found: dict[str, float] = {
                "calls": sum(self._statuses.values()),
                "retries": self._retries,
                "restarts": self.restarts,
                "pauses": self.pauses,
                **{status: float(self._statuses[status]) for status in get_args(Status)},
            }
            for name, values in (("run", self._run_s), ("queue", self._queue_s)):
                for percent in (50, 99):
                    found[f"{name}_p{percent}_s"] = quantile(values, percent / 100)
            self.restarts = self.pauses = 0
            self._clear()
        return found


def quantile(values: list[float], q: float) -> float:
    """The value below which the share ``q`` of them lies; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else 0.0
