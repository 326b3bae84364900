"""One worker process of the verifier: started, asked, killed and replaced."""

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from torl.errors import VerifierFault

START_LIMIT_S = 60.0  # importing sympy from a cold disk on a busy machine


class WorkerProcess:
    """A process of ``torl.rewards.worker``. Used by one thread at a time."""

    def __init__(self, memory_mb: int) -> None:
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._ready = False
        self._closed = False

    def check(self, answer: str, reference: str, timeout_s: float) -> bool:
        """Whether the two are equal. Raises VerifierFault when it is not decided."""
        request = {"answer": answer, "reference": reference}
        return bool(
            self._ask(request, timeout_s, f"checking {answer[:80]!r} against {reference[:80]!r}")["equal"]
        )

    def find(self, pattern: str, texts: list[str], timeout_s: float) -> str | None:
        """What a regular expression finds last. Raises VerifierFault when it does not come to an end."""
        request = {"pattern": pattern, "texts": texts}
        found: str | None = self._ask(request, timeout_s, f"looking for {pattern!r}")["found"]
        return found

    def _ask(self, request: dict[str, Any], timeout_s: float, what: str) -> dict[str, Any]:
        """Asks the worker. Raises VerifierFault, and replaces it, when it does not answer."""
        try:
            self._await_ready()
            line = json.dumps({**request, "timeout_s": timeout_s}).encode() + b"\n"
            reply = self._exchange(line, timeout_s)
        except (VerifierFault, OSError) as error:
            self._replace()
            raise VerifierFault(f"{what}: {error}") from error
        if reply.get("retire"):
            self._replace()
        if "fault" in reply:
            raise VerifierFault(f"{what}: {reply['fault']}")
        return reply

    def kill(self) -> None:
        """Ends the process for good. Called from another thread: a check that waits raises."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()

    def release(self) -> None:
        """Frees what the killed process held. Called when no check is running any more."""
        self._stop()

    def _replace(self) -> None:
        """A new process starts loading at once, so that the next check need not wait for all of it."""
        self._stop()
        if not self._closed:
            self._start()

    def _start(self) -> None:
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _stop
        self._process = subprocess.Popen(
            # -P: a file named like a module in the user's folder must not be imported instead
            [sys.executable, "-P", "-m", "torl.rewards.worker", str(self._memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,  # Ctrl-C is the trainer's to handle
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        )

    def _stop(self) -> None:
        process, self._process, self._ready = self._process, None, False
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def _await_ready(self) -> None:
        if self._closed:
            raise VerifierFault("the verifier is closed")
        if self._process is None:
            self._start()
        if not self._ready:
            self._exchange(b"", START_LIMIT_S)
            self._ready = True

    def _exchange(self, request: bytes, limit_s: float) -> dict[str, Any]:
        """Writes a line and reads one within the limit. An idle worker reads: writing does not block."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise VerifierFault("the verifier is closed")
        while request:
            request = request[os.write(process.stdin.fileno(), request) :]
        line, deadline = b"", time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise VerifierFault(f"no verdict within {limit_s:g} s")
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    raise VerifierFault(f"the worker died: {self._last_words(process)}")
                line += chunk
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _last_words(self, process: "subprocess.Popen[bytes]") -> str:
        code = process.wait()
        if self._stderr is None:
            return f"exit status {code}"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"exit status {code}{': ' + lines[-1] if lines else ''}"
