"""A process of ours at the other end of a socket: the trainer's broker, the broker's zygotes."""

import os
import socket
import subprocess
from collections.abc import Callable, Mapping

from torl.sandbox.process import memory_file

LAST_WORDS = 4000  # bytes


class Spawned:
    """Started with its end of ``socket`` and nothing else; what it says on standard error is kept.

    ``command`` makes the command line from the number of its descriptor. Raises OSError when no
    process can be had.
    """

    def __init__(
        self, command: Callable[[int], list[str]], env: Mapping[str, str], kind: int = socket.SOCK_STREAM
    ) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, kind)
        self._said = memory_file("stderr")
        try:
            self.process = subprocess.Popen(
                command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                cwd="/",
                env=env,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at a terminal is the trainer's to handle
            )
        except OSError:
            self.socket.close()
            self.forget()
            raise
        finally:
            theirs.close()

    def last_words(self) -> str:
        """The end of what it said on standard error."""
        said = os.pread(self._said, LAST_WORDS, max(0, os.fstat(self._said).st_size - LAST_WORDS))
        return said.decode("utf-8", "replace").strip()

    def forget(self) -> None:
        """No last words are wanted any more."""
        os.close(self._said)
