"""The file tree that a child sees where namespaces can be had: Python's libraries, and nothing else."""

from __future__ import annotations

import os

from torl.sandbox.inside import kernel

BOX = "/box"  # the scratch directory, a file system of its own for each call
READ_DEVICES, WRITE_DEVICES = ("/dev/urandom", "/dev/random"), ("/dev/null", "/dev/zero")
MOUNT_POINTS = ("/tmp", "/mnt", "/media", "/srv", "/opt", "/home", "/run", "/var", "/sys")


def build(read: list[str]) -> None:
    """Moves this process, in a mount namespace of its own, into a new root. Raises OSError.

    The root is a small memory file system in which the folders ``read`` appear under their own
    paths, read-only. It is mounted over a folder of the host, in this namespace only: the host
    sees nothing of it, and nothing has to be removed later.
    """
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    new = _mount_point(read)
    kernel.mount("torl", new, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=0755")
    for path in read:
        _show(path, new + path)
    os.makedirs(f"{new}/dev", exist_ok=True)
    for device in (*READ_DEVICES, *WRITE_DEVICES):
        with open(new + device, "w"):
            pass
        kernel.bind(device, new + device)
        kernel.read_only(new + device, devices=True)  # its mode and times; it can be written to
    for folder in (BOX, "/tmp", "/proc"):
        os.makedirs(new + folder, exist_ok=True)
    for link in ("/lib", "/lib64", "/bin"):
        if os.path.islink(link) and not os.path.lexists(new + link):
            os.symlink(os.readlink(link), new + link)
    kernel.pivot_into(new)
    kernel.remount_read_only("/")


def _mount_point(read: list[str]) -> str:
    for path in MOUNT_POINTS:
        if os.path.isdir(path) and not any(f"{shown}/".startswith(f"{path}/") for shown in read):
            return path
    raise OSError(f"no folder of {', '.join(MOUNT_POINTS)} can be mounted over: all hold a part of Python")


def _show(path: str, target: str) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w"):
            pass
    kernel.bind(path, target)
    kernel.read_only(target)
