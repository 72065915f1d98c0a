"""A file that is written whole or not at all."""

import errno
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path


def check_writable(path: Path) -> None:
    """Find out, by trying, whether `write_whole` can write there.

    Raises:
        OSError: it cannot; the message says why.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        # To replace a device or a folder by a file is never what was meant.
        message = f"{path} is not a regular file"
        raise OSError(message)
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    beside = _beside(target)
    beside.touch(exist_ok=False)
    beside.unlink()


def write_whole(path: Path, text: str) -> None:
    """Write a file, or replace the one that is there; nobody ever sees a part of it.

    Raises:
        OSError: it cannot be written, and what was there is still there.
    """
    target = path.resolve()
    beside = _beside(target)
    try:
        beside.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()


def _beside(target: Path) -> Path:
    # In the same folder, since a file is replaced in one step only within its file system.
    return target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
