"""The trainer's end of one broker: its process, its socket, and a thread that listens."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torl.sandbox.frames import BrokenFrame, Unpacker, pack, receive
from torl.sandbox.process import memory_file

CLOSE_S = 5.0  # for a broker to end after its socket was closed
START = """
import json, sys
sys.path.insert(0, sys.argv[1])
from torl.sandbox.broker import main
main(int(sys.argv[2]), json.loads(sys.argv[3]))
"""


class Connection:
    """``hear`` is called with each message, ``broken`` once when the broker has ended unasked;
    both by a thread of the connection. Raises OSError when no process can be had.
    """

    def __init__(
        self,
        config: dict[str, Any],
        hear: Callable[[dict[str, Any]], None],
        broken: Callable[["Connection", str], None],
    ) -> None:
        self._hear, self._broken = hear, broken
        self._closing = False
        self._send_lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._said = memory_file("broker-stderr")
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-c",
                    START,
                    str(Path(__file__).parents[2]),
                    str(theirs.fileno()),
                    json.dumps(config),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                cwd="/",
                env={},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at a terminal is the trainer's to handle
            )
        except OSError:
            self._socket.close()
            os.close(self._said)
            raise
        finally:
            theirs.close()
        self._thread = threading.Thread(target=self._listen, name="torl-sandbox", daemon=True)
        self._thread.start()

    def send(self, message: dict[str, Any]) -> None:
        """Raises OSError when the broker is gone."""
        with self._send_lock:
            self._socket.sendall(pack(message))

    def close(self) -> None:
        """Hangs up and waits until the broker has ended. To be called once, from another thread."""
        self._closing = True
        with contextlib.suppress(OSError):  # the broker had ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _listen(self) -> None:
        unpacker = Unpacker()
        why = ""
        while not why:
            try:
                messages = receive(self._socket, unpacker)
            except BrokenFrame as error:
                why = str(error)
                break
            if messages is None:
                break
            for message in messages:
                self._hear(message)
        self._end()
        if not self._closing:
            self._broken(self, why or self._last_words())
        os.close(self._said)

    def _end(self) -> None:
        with self._send_lock:
            self._socket.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        said = os.pread(self._said, 4000, max(0, os.fstat(self._said).st_size - 4000))
        text = said.decode("utf-8", "replace").strip()
        return f"with {self._process.returncode}{': ' if text else ''}{text}"
