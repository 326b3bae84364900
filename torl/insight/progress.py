"""Live progress: a row per step above a bar in a terminal, a plain line per step elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from torl.insight.render import visible

_SAY_EVERY_S = 30.0


class _Column(NamedTuple):
    title: str
    width: int
    metric: str
    form: Callable[[float], str]


def _percent(value: float) -> str:
    return f"{value:.1%}"


_COLUMNS = [
    _Column("reward", 7, "reward/mean", "{:+.3f}".format),
    _Column("accuracy", 8, "rollout/accuracy", _percent),
    _Column("code", 7, "rollout/code_ratio", _percent),
    _Column("pass", 7, "rollout/pass_ratio", _percent),
    _Column("tokens", 7, "rollout/completion_tokens", "{:.0f}".format),
    _Column("tokens/s", 8, "sampler/tokens_per_s", "{:,.0f}".format),
]


class Progress:
    """``with Progress(total_steps) as p: p.step(step, metrics); p.note(text)``.

    ``start`` steps were done by an earlier process (resume). ``total`` 0 shows no bar of
    steps, for an evaluation: ``with Progress() as p, p.part("mawps", 96) as advance: advance()``.
    """

    def __init__(self, total: int = 0, start: int = 0, file: TextIO | None = None):
        self.total = total
        self.done = start
        self._file = file or sys.stdout
        self._live = self._file.isatty()
        self._console = Console(file=self._file, highlight=False)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not self._live,
            transient=True,
        )
        self._main = self._bars.add_task("steps", total=total, completed=start, left="") if total else None
        self._pace: deque[float] = deque(maxlen=8)  # seconds of the latest steps
        self._titled = False
        self._since = time.monotonic()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done: shows its row. ``step`` counts from 0, as in metrics.jsonl."""
        now = time.monotonic()
        self._pace.append(metrics.get("time/step_s", now - self._since))
        self._since = now
        self.done += 1
        if self._live:
            self._row(step, metrics)
        else:
            self._print(_plain_line(step, metrics, self.time_left()))
        if self._main is not None:
            self._bars.update(self._main, completed=self.done, left=f"{self.time_left()} left")

    def note(self, text: str) -> None:
        """A line of text between the rows."""
        self._print(visible(text))

    @contextmanager
    def part(self, label: str, total: int, quiet: bool = False) -> Iterator[Callable[..., None]]:
        """A second bar, for an evaluation or a rollout; yields ``advance(n=1)``.

        Without a terminal it is a line at the end, and one every half minute before; none with
        ``quiet``, which is for what every step repeats.
        """
        begun = said = time.monotonic()
        count = 0
        bar = self._bars.add_task(label, total=total, left="")
        quiet = quiet or self._live

        def advance(n: int = 1) -> None:
            nonlocal count, said
            count += n
            self._bars.update(bar, completed=count)
            if not quiet and count < total and time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                self._print(f"{label}: {count}/{total}")

        try:
            yield advance
        finally:
            self._bars.remove_task(bar)
        if not quiet:
            self._print(f"{label}: {count}/{total} in {_duration(time.monotonic() - begun)}")

    def time_left(self) -> str:
        """What the steps to come will take at the pace of the latest ones; "?" before the first."""
        if not self._pace or self.total < self.done:
            return "?"
        return _duration((self.total - self.done) * sum(self._pace) / len(self._pace))

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._bars.stop()

    def _row(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._titled:
            titles = " ".join(f"{column.title:>{column.width}}" for column in _COLUMNS)
            self._print(f" step {titles} {'s/step':>7} {'left':>8}", style="bold")
            self._titled = True
        cells = " ".join(f"{_cell(column, metrics):>{column.width}}" for column in _COLUMNS)
        self._print(f"{step:5d} {cells} {self._pace[-1]:7.1f} {self.time_left():>8}")

    def _print(self, text: str, style: str | None = None) -> None:
        if self._live:
            self._console.print(text, style=style, markup=False, soft_wrap=True)
        else:
            print(text, file=self._file, flush=True)


def _plain_line(step: int, metrics: Mapping[str, float], left: str) -> str:
    cells = [f"{c.title} {_cell(c, metrics)}" for c in _COLUMNS if c.metric in metrics]
    return "  ".join([f"step {step}", *cells, f"left {left}"])


def _cell(column: _Column, metrics: Mapping[str, float]) -> str:
    return column.form(metrics[column.metric]) if column.metric in metrics else "-"


def _duration(seconds: float) -> str:
    """``48 s``, ``3m 20s``, ``2h 05m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
