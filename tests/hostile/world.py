"""What stands around the sandbox and must stay as it is: files, a process, listeners."""

import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36


class World:
    """Made by the user that runs the sandbox, so that nothing but the layers protects it.

    A context manager: all of it is gone afterwards.
    """

    def __init__(self) -> None:
        self.secret = f"torl-secret-{secrets.token_hex(8)}"
        self.folder = Path(tempfile.mkdtemp(prefix="torl-host-", dir="/tmp"))
        self._make_files()
        self._process = self._sleeper()
        self._listeners = self._listen()
        self._before = self._state()

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for listener in self._listeners:
            listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Of the process that must not be harmed."""
        return self._process.pid

    def fill(self, code: str) -> str:
        """Replaces the words that stand for what is here."""
        words = {
            "@DIR@": str(self.folder),
            "@PID@": str(self._process.pid),
            "@TRAINER@": str(os.getpid()),
            "@PORT@": str(self._listeners[0].getsockname()[1]),
            "@ABSTRACT@": self.secret.removeprefix("torl-secret-"),
        }
        for word, text in words.items():
            code = code.replace(word, text)
        return code

    def complaints(self) -> list[str]:
        """What is not as it was; it is put back."""
        now = self._state()
        found = [
            f"host: {name} was {self._before.get(name)}, is {now.get(name)}"
            for name in sorted(self._before.keys() | now.keys())
            if self._before.get(name) != now.get(name)
        ]
        found += [f"host: a connection to {x.getsockname()}" for x in self._listeners if _called(x)]
        if found:
            self._restore()
        return found

    def _make_files(self) -> None:
        self.folder.chmod(0o777)
        (self.folder / "answers.json").write_text(f'{{"answer": "{self.secret}"}}')
        (self.folder / "owned.txt").write_text("as it was\n")
        (self.folder / "script.sh").write_text("#!/bin/sh\n")
        (self.folder / "drop").mkdir()
        for name, mode in (
            ("answers.json", 0o644),
            ("owned.txt", 0o666),
            ("script.sh", 0o755),
            ("drop", 0o777),
        ):
            (self.folder / name).chmod(mode)
            os.utime(self.folder / name, (1e9, 1e9))

    def _sleeper(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sleep", "900"], env={"API_KEY": self.secret}, stdin=subprocess.DEVNULL)

    def _listen(self) -> list[socket.socket]:
        tcp = socket.create_server(("127.0.0.1", 0))
        path = socket.socket(socket.AF_UNIX)
        path.bind(str(self.folder / "socket"))
        (self.folder / "socket").chmod(0o777)
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind("\0torl-" + self.secret.removeprefix("torl-secret-"))
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(tcp.getsockname())
        log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # as the system's log has
        log.bind(str(self.folder / "log"))
        (self.folder / "log").chmod(0o777)
        hidden_log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        hidden_log.bind("\0torl-log-" + self.secret.removeprefix("torl-secret-"))
        for listener in (tcp, path, abstract):
            listener.listen()
        found = [tcp, path, abstract, udp, log, hidden_log]
        for listener in found:
            listener.setblocking(False)
        return found

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in [self.folder, *sorted(self.folder.rglob("*"))]:
            status = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else ""
            times = () if path == self.folder else (status.st_mtime,)
            found[path.name] = (oct(status.st_mode), status.st_size, status.st_uid, *times, content)
        pid = self._process.pid
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found["process"] = "stopped" if fields[0] in "Tt" else "ended" if fields[0] == "Z" else "there"
        if found["process"] == "there":
            limits = Path(f"/proc/{pid}/limits").read_text()
            found["process limits"] = hashlib.sha256(limits.encode()).hexdigest()[:12]
            found["process priority"] = os.getpriority(os.PRIO_PROCESS, pid)
            found["process affinity"] = os.sched_getaffinity(pid)
        found["shared memory"] = sorted(path.name for path in _shared_memory())
        for kind in ("shm", "msg", "sem"):
            found[f"sysv {kind}"] = _ipc(kind)
        return found

    def _restore(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        for name in os.listdir(self.folder):
            if name not in ("socket", "log"):
                path = self.folder / name
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for path in _shared_memory():
            path.unlink()
        self._make_files()
        self._process = self._sleeper()
        self._before = self._state()


def _called(listener: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        if listener.type == socket.SOCK_DGRAM:
            listener.recv(100)
        else:
            listener.accept()[0].close()
        return True
    return False


def _shared_memory() -> list[Path]:
    """What this user has in it."""
    return [path for path in Path("/dev/shm").glob("torl-*") if path.stat().st_uid == os.getuid()]


def _ipc(kind: str) -> int:
    """System V objects of this user."""
    try:
        lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
    except OSError:
        return 0
    column = lines[0].split().index("uid")
    return sum(line.split()[column] == str(os.getuid()) for line in lines[1:])
