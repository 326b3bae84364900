"""The working directory of one call: made empty, removed whatever the code left in it."""

import itertools
import os
import tempfile
import time

PATIENCE_S = 10.0  # a process that escaped may fill the directory while it is emptied


def make_scratch() -> str:
    """The path of a new empty directory that only this user may enter. Raises OSError."""
    return tempfile.mkdtemp(prefix="torl-")


def remove_scratch(path: str) -> None:
    """Removes the directory and all in it; what cannot be removed is left, silently.

    Code may have left a tree too deep for recursion or for PATH_MAX, and directories without
    permissions. So nothing recurses: directories are moved up to the top and emptied there.
    """
    numbers, end = itertools.count(), time.monotonic() + PATIENCE_S
    try:
        while (children := _directories(path)) and time.monotonic() < end:
            for child in children:
                for inner in _directories(child):
                    os.rename(inner, os.path.join(path, f".torl-{os.getpid()}-{next(numbers)}"))
                os.rmdir(child)
        os.rmdir(path)
    except OSError:  # what is left is for the system's cleaner
        return


def _directories(path: str) -> list[str]:
    """Removes all of ``path`` that is no directory, and gives the directories."""
    os.chmod(path, 0o700)
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)  # moving a directory needs the right to write in it
                found.append(entry.path)
            else:
                os.unlink(entry.path)
    return found
