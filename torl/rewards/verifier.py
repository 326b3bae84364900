"""Decides whether an answer equals the reference, in processes that can be killed.

math-verify builds on sympy, which can hang or exhaust memory on a short string such as
``9^{9^{9^9}}``, and whose own time limits need the main thread's signals. So a check runs in a
worker process, and the parent's clock is the authority. What is not decided in time is
VerifierFault, never "wrong".
"""

import asyncio
import queue
from concurrent.futures import ThreadPoolExecutor

from torl.rewards.normalise import normalise
from torl.rewards.plain import decide_plain
from torl.rewards.process import WorkerProcess

_CACHED = 10_000  # verdicts kept: samples of one task often give the same answer


class Verifier:
    """Checks (answer, reference) pairs. May be used from any thread and any event loop.

    ``workers`` processes start when they are first needed; each check gets ``timeout_s``
    wall seconds, not counting the wait for a free worker, and ``memory_mb`` address space.
    """

    def __init__(self, workers: int = 1, timeout_s: float = 5.0, memory_mb: int = 2048) -> None:
        self.timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="torl-verifier")
        self._processes = [WorkerProcess(memory_mb) for _ in range(workers)]
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._verdicts: dict[tuple[str, str], bool] = {}

    async def check(self, answer: str, reference: str) -> bool:
        """True when the answer equals the reference.

        Equal strings, plain numbers and words are decided here, in microseconds; an answer
        of more than 1000 characters that is not the reference itself is wrong. The rest goes
        to a worker. Raises VerifierFault when the check ran out of time or memory, or its
        worker died.
        """
        pair = normalise(answer), normalise(reference)
        verdict = decide_plain(*pair)
        if verdict is None:
            verdict = self._verdicts.get(pair)
        if verdict is None:
            loop = asyncio.get_running_loop()
            verdict = await loop.run_in_executor(self._threads, self._check_in_worker, *pair)
        return verdict

    async def find(self, pattern: str, texts: list[str]) -> str | None:
        """The last match of a regular expression in the last text that has one: its first group, or
        all of it where it has no groups; None without a match.

        In a worker, since matching may take for ever and Python's ``re`` lets nothing else run
        meanwhile. Raises VerifierFault when it did not come to its end in time.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._find_in_worker, pattern, texts)

    async def close(self) -> None:
        """Kills the workers. A check that is running raises VerifierFault."""
        for process in self._processes:
            process.kill()
        await asyncio.to_thread(self._threads.shutdown)
        for process in self._processes:
            process.release()

    def _check_in_worker(self, answer: str, reference: str) -> bool:
        process = self._idle.get()
        try:
            verdict = process.check(answer, reference, self.timeout_s)
        finally:
            self._idle.put(process)
        if len(self._verdicts) >= _CACHED:
            self._verdicts.clear()
        self._verdicts[answer, reference] = verdict
        return verdict

    def _find_in_worker(self, pattern: str, texts: list[str]) -> str | None:
        process = self._idle.get()
        try:
            return process.find(pattern, texts, self.timeout_s)
        finally:
            self._idle.put(process)
