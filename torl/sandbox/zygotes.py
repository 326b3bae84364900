"""The broker's end of a zygote: started, asked for children, listened to."""

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from typing import Any, Literal

from torl.sandbox.interpreter import START_S, Interpreter, environment
from torl.sandbox.process import Child, Exit, memory_file
from torl.sandbox.tiers import Plan

MESSAGE = 1 << 16  # bytes of the longest message
CALLS = 20_000  # a zygote is replaced after that many


class ZygoteDied(Exception):
    """The zygote is gone, or spoke nonsense."""


class Zygote:
    """One warm interpreter and the children that it has running.

    ``state``: it starts, is tested, serves, or serves no new calls ("retired").
    """

    def __init__(self, python: Interpreter, plan: Plan, preload: list[str]) -> None:
        self.plan = plan
        self.state: Literal["starting", "testing", "ready", "retired"] = "starting"
        self.deadline = time.monotonic() + START_S  # for becoming ready
        self.versions: dict[str, str] = {}
        self.rss_mb = 0.0  # resident memory, which its children share
        self.children: dict[int, Child] = {}
        self.served = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said = memory_file("zygote-stderr")
        config: dict[str, object] = {
            "socket": theirs.fileno(),
            "broker": os.getpid(),
            "namespaces": plan.namespaces,
            "landlock": plan.landlock,
            "uid": plan.uid,
            "reads_as_root": plan.reads_as_root,
            "files": plan.files,
            "path": python.path,
            "read": python.read,
            "preload": preload,
        }
        try:
            self._process = subprocess.Popen(
                python.command(config),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                cwd="/",
                env=environment("/box" if plan.namespaces else "/nonexistent"),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            self._socket.close()
            os.close(self._said)
            raise
        finally:
            theirs.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, request: dict[str, Any], child: Child) -> None:
        """Asks for a child. Raises ZygoteDied."""
        descriptors = array.array("i", child.for_zygote)
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
        try:
            self._socket.sendmsg([json.dumps(request).encode()], extra)
        except OSError as error:
            raise ZygoteDied(f"it does not listen: {error}") from error
        child.sent()
        child.rss_before_mb = self.rss_mb
        self.children[child.number] = child
        self.served += 1

    def receive(self) -> dict[str, Any]:
        """The next message. Of a child that has started or ended, the child has been told.

        Raises ZygoteDied, with what it said last.
        """
        try:
            data, extra, _, _ = self._socket.recvmsg(MESSAGE, socket.CMSG_SPACE(4))
        except OSError:
            data, extra = b"", []
        descriptors = array.array("i")
        for level, kind, content in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: len(content) - len(content) % 4])
        if not data:
            raise ZygoteDied(self._last_words())
        message: dict[str, Any] = json.loads(data)
        child = self.children.get(message.get("id", -1))
        if message["ev"] == "start" and child is not None and descriptors:
            child.started(descriptors.pop(0))
        for descriptor in descriptors:  # of a child that nobody waits for any more
            os.close(descriptor)
        if message["ev"] == "exit" and child is not None:
            code = os.waitstatus_to_exitcode(message["status"])
            child.exit = Exit(code, message["cpu_s"], message["max_rss_kb"] / 1024)
        if message["ev"] in ("exit", "no_child"):
            self.children.pop(message["id"], None)
        return message

    def _last_words(self) -> str:
        code = self._process.poll()
        said = os.pread(self._said, 2000, max(0, os.fstat(self._said).st_size - 2000))
        text = said.decode("utf-8", "replace").strip()
        return f"it ended{'' if code is None else f' with {code}'}{': ' + text if text else ''}"

    def close(self) -> None:
        """Kills it, and with it its children (whose descriptors are the broker's to close)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        os.close(self._said)
