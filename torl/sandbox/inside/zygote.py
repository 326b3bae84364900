"""The zygote: a warm interpreter that forks one locked-down child per call.

It talks with the broker over a SOCK_SEQPACKET socket, trusted both ways, which a child closes
before it runs code:

    broker → zygote   {"id", limits ...}, with the descriptors that child.Files names
    zygote → broker   {"ev": "ready", "versions", "rss_kb"} | {"ev": "failed", "why"}   once
                      {"ev": "start", "id"}, with a pidfd | {"ev": "no_child", "id", "why"}
                      {"ev": "exit", "id", "status", "cpu_s", "max_rss_kb"}

It never reads the code or its output: a later child could find them in its memory.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
import time

from torl.sandbox.inside import child, kernel, landlock, root, seccomp, warm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn, TextIO

COUNT_S = 10.0  # for which a count of threads is good
MESSAGE = 1 << 16  # bytes of the longest message


def serve(config: dict[str, Any]) -> NoReturn:
    """Sets itself up as ``config`` says, says so, and serves the broker until it hangs up."""
    with socket.socket(fileno=config["socket"]) as broker:
        broker.set_inheritable(False)
        try:
            kernel.die_with_parent(config["broker"])
            prepared = _prepare(config)
            versions = warm.preload(config["preload"])
            if config["files"] == "none":
                warm.preload_everything(list(versions))
            _check_threads(prepared)
        except BaseException as error:
            _send(broker, {"ev": "failed", "why": f"{type(error).__name__}: {error}"})
            os._exit(1)
        _settle()
        prepared.address_space, resident = kernel.memory(prepared.proc)
        _send(broker, {"ev": "ready", "versions": versions, "rss_kb": resident >> 10})
        _Zygote(broker, prepared).run()
    os._exit(0)


def _prepare(config: dict[str, Any]) -> child.Prepared:
    """Isolates the zygote itself, and opens what its children need, ahead of the forks."""
    sys.path[:] = config["path"]
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # when memory runs out, a snippet goes before the trainer
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)  # not visible in the new root
    if config["namespaces"]:
        _enter_namespaces(config, proc)
    return child.Prepared(
        proc=proc,
        namespaces=config["namespaces"],
        uid=config["uid"],
        reads_as_root=config["reads_as_root"],
        ruleset=landlock.Ruleset(
            [*config["read"], *root.READ_DEVICES],
            root.WRITE_DEVICES,
            max_abi=config["landlock"],
        )
        if config["landlock"]
        else None,
        filter=seccomp.Filter(config["files"]) if config["files"] else None,
        zygote=os.getpid(),
        address_space=0,
    )


def _enter_namespaces(config: dict[str, Any], proc: int) -> None:
    """New namespaces for mounts, network, IPC, host name and processes, and a new root.

    The zygote becomes process 1 of its namespace: when it dies, the kernel kills every child.
    """
    uid, gid = os.getuid(), os.getgid()
    kinds = kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET | kernel.NEWPID
    if config["namespaces"] == "user":
        kernel.unshare(kernel.NEWUSER | kinds)
        kernel.write_id_maps(proc, uid, gid)
    else:
        kernel.unshare(kinds)
    root.build(config["read"])
    inner = os.fork()
    if inner:  # stays outside, to die with the broker and to be its child
        os.closerange(3, 1 << 16)
        _, status = os.waitpid(inner, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    kernel.die_with_parent(0)  # outside, it has no number here


def _check_threads(prepared: child.Prepared) -> None:
    folder = os.open("self/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=prepared.proc)
    try:
        threads = len(os.listdir(folder))
    finally:
        os.close(folder)
    if threads != 1:
        raise RuntimeError(
            f"a package started {threads - 1} threads: it cannot be preloaded, a fork would lose them"
        )


def _settle() -> None:
    """Makes the interpreter ready to be forked: what is shared stays untouched, so it stays shared."""
    for name in [n for n in sys.modules if n == "torl" or n.startswith("torl.")]:
        del sys.modules[name]
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = _stream(descriptor)
        vars(sys).update({name: stream, f"__{name}__": stream})
    gc.collect()
    gc.freeze()
    gc.disable()


def _stream(descriptor: int) -> TextIO:
    """A stream for what will be a pipe, and is made as one: streams that can seek work otherwise.

    Text goes out by the line, so that a kill loses nothing.
    """
    own, (source, sink) = os.dup(descriptor), os.pipe()
    os.dup2(sink, descriptor)
    stream = open(descriptor, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    os.dup2(own, descriptor)
    for other in (own, source, sink):
        os.close(other)
    return stream


class _Zygote:
    def __init__(self, broker: socket.socket, prepared: child.Prepared) -> None:
        self._broker, self._prepared = broker, prepared
        self._running: dict[int, tuple[int, int]] = {}  # pidfd: (call, pid)
        self._tasks, self._counted_at = 0, -COUNT_S
        self._poll = select.poll()
        self._poll.register(broker, select.POLLIN)

    def run(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._broker.fileno():
                    self._reap(descriptor)
                elif not self._serve():
                    return

    def _serve(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._broker, MESSAGE, child.Files.MOST)
        if not data:
            return False
        request = json.loads(data)
        request["processes"] += self._others()
        try:
            pid = os.fork()
            if pid == 0:
                self._be_child(request, descriptors)
            self._started(request["id"], pid)
        except OSError as error:  # no process or no descriptor to be had
            _send(self._broker, {"ev": "no_child", "id": request["id"], "why": str(error)})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _others(self) -> int:
        """Threads that the limit of a child's would count beside its own."""
        if self._prepared.uid or self._prepared.namespaces == "user" or os.geteuid() == 0:
            return 0  # the child has a user of its own, in name or in a namespace; or nothing counts
        now = time.monotonic()
        if now - self._counted_at > COUNT_S:
            self._tasks, self._counted_at = kernel.tasks_of_user(self._prepared.proc), now
        return self._tasks

    def _be_child(self, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
        try:
            self._broker.detach()  # closed with all other descriptors once the layers are on
            child.run(request, self._prepared, child.Files(descriptors))
        except BaseException as error:  # a layer failed: the code has not run
            text = f"{type(error).__name__}: {error}"
            os.write(descriptors[child.Files.ERR], text.encode("utf-8", "replace")[:1000])
        finally:
            os._exit(125)

    def _started(self, call: int, pid: int) -> None:
        try:
            watch = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise
        self._running[watch] = (call, pid)
        self._poll.register(watch, select.POLLIN)
        _send(self._broker, {"ev": "start", "id": call}, [watch])

    def _reap(self, watch: int) -> None:
        call, pid = self._running.pop(watch)
        self._poll.unregister(watch)
        os.close(watch)
        _, status, usage = os.wait4(pid, 0)
        cpu_s = usage.ru_utime + usage.ru_stime
        report = {"id": call, "status": status, "cpu_s": cpu_s, "max_rss_kb": usage.ru_maxrss}
        _send(self._broker, {"ev": "exit", **report})


def _send(broker: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    try:
        socket.send_fds(broker, [json.dumps(message).encode()], descriptors)
    except OSError:  # the broker is gone
        os._exit(0)
