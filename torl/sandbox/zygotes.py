"""The broker's end of a zygote: started, asked for children, listened to."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import time
from typing import Any, Literal

from torl.sandbox.interpreter import START_S, Interpreter, environment
from torl.sandbox.process import Child, Exit
from torl.sandbox.spawn import Spawned
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
        config = {
            **dataclasses.asdict(plan),
            "broker": os.getpid(),
            "path": python.path,
            "read": python.read,
            "preload": preload,
        }
        self._spawned = Spawned(
            lambda descriptor: python.command({**config, "socket": descriptor}),
            env=environment("/box" if plan.namespaces else "/nonexistent"),
            kind=socket.SOCK_SEQPACKET,
        )
        self._socket, self._process = self._spawned.socket, self._spawned.process

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, request: dict[str, Any], child: Child) -> None:
        """Asks for a child. Raises ZygoteDied."""
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], child.for_zygote)
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
            data, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE, 1)
        except OSError:
            data, descriptors = b"", []
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
        text = self._spawned.last_words()
        return f"it ended{'' if code is None else f' with {code}'}{': ' + text if text else ''}"

    def close(self) -> None:
        """Kills it, and with it its children (whose descriptors are the broker's to close)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        self._spawned.forget()
