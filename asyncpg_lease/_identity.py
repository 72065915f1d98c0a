"""Who holds: a fresh name for every acquisition."""

from __future__ import annotations

import os
import socket

__all__ = ["fresh_holder"]

_RANDOM_BYTES = 16


def fresh_holder(label: str | None) -> str:
    """Make ``label/random``; the label is for people, the random half is the identity.

    Host and pid do not tell two containers apart (both are pid 1 of ``app``), so nothing depends on
    them. They are read anew each time, since a forked child has another pid.
    """
    return f"{default_label() if label is None else label}/{os.urandom(_RANDOM_BYTES).hex()}"


def default_label() -> str:
    """Return ``host:pid``, fit for a text column whatever the host is called."""
    host = socket.gethostname().encode("utf-8", "replace").decode()
    return f"{host}:{os.getpid()}"
