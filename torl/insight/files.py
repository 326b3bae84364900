"""Writing files so that a crash or a full disk never leaves half of one."""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torl.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turns a full disk or a read-only folder into a UserError that says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise UserError(
                f"no space left on the device while writing {path}. What was saved before is whole. "
                "Free some space, then continue with the same command and --resume"
            ) from error
        if error.errno in _DENIED:
            raise UserError(
                f"not allowed to write {path} ({error.strerror}). Give yourself the right to write "
                "there and continue with --resume, or choose another folder"
            ) from error
        raise


def atomic_write(path: Path, data: str | bytes | Iterable[bytes]) -> None:
    """Writes a whole file: temporary file, fsync, rename. Readers see the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with saving(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(temporary, data)
            os.replace(temporary, path)
            sync(path.parent)  # the rename itself must survive a power cut
        finally:
            temporary.unlink(missing_ok=True)  # of no use after a failure; frees its space


def remove_temporaries(folder: Path) -> None:
    """Removes what a killed process left between its write and its rename."""
    for path in [*folder.rglob(".*.tmp")]:
        if path.is_dir():  # a checkpoint
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _write(path: Path, data: str | bytes | Iterable[bytes]) -> None:
    chunks = [data.encode()] if isinstance(data, str) else [data] if isinstance(data, bytes) else data
    with open(path, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Waits until a file, or what a folder lists, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
