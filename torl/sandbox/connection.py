"""The trainer's end of one broker: its process, its socket, and a thread that listens."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torl.sandbox.frames import BrokenFrame, Unpacker, pack, receive
from torl.sandbox.spawn import Spawned

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
        self._hear, self._on_end = hear, broken
        self._closing = False
        self._send_lock = threading.Lock()
        arguments = ["-I", "-c", START, str(Path(__file__).parents[2])]
        self._broker = Spawned(
            lambda descriptor: [sys.executable, *arguments, str(descriptor), json.dumps(config)], env={}
        )
        self._socket, self._process = self._broker.socket, self._broker.process
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
        unpacker, why = Unpacker(), ""
        try:
            while (messages := receive(self._socket, unpacker)) is not None:
                for message in messages:
                    self._hear(message)
        except BrokenFrame as error:
            why = str(error)
        self._end()
        if not self._closing:
            self._on_end(self, why or self._last_words())
        self._broker.forget()

    def _end(self) -> None:
        with self._send_lock:
            self._socket.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        text = self._broker.last_words()
        return f"with {self._process.returncode}{': ' if text else ''}{text}"
