"""Revoking a tenure: what an operator asks for, and what came of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from asyncpg_lease._clock import local_time
from asyncpg_lease._driver import ask_again
from asyncpg_lease._rows import LeaseInfo, RevocationOutcome, revocation_row
from asyncpg_lease.errors import LeaseTableError
from asyncpg_lease.schema import settle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncpg_lease._driver import Connection
    from asyncpg_lease._store import Store

__all__ = ["Revocation", "RevocationOutcome", "revoke"]

_SENTENCES: Mapping[RevocationOutcome, str] = {
    "requested": "its holder learns of it by its next renewal, and keeps the key until its body has ended",
    "ended": (
        "its row has run out, and others may start now; a body that still runs learns of it by its next renewal, and"
        " what it writes until then must be refused by its fence"
    ),
    "already_revoked": "its holder was asked before, and has not released it yet; force=True ends the tenure",
    "other_tenure": "it is not the tenure that was to be revoked, and was not touched",
    "resting": "it was released already, and rests under its min_hold; force=True opens it at once",
    "free": "nobody has it",
    "unknown": "there is no such key",
}

LOCK_LIMIT = 0.5
"""Seconds for which one try waits for a row that another session has locked; renewals may need its connection."""

LOCK_TRIES = 20
"""Such tries, each a job of its own, so that renewals come in between."""

RACES = 20
"""How often a row may change between a look and a write before it is not changes that keep it from being written."""

logger = logging.getLogger("asyncpg_lease")


@dataclass(frozen=True, slots=True)
class Revocation:
    """What came of `LeaseTable.revoke`; as text, a sentence for the operator.

    Attributes:
        key: the key.
        outcome: what was done, or why nothing was, see `RevocationOutcome`.
        info: the key's row, after what was done; None where there is none.
    """

    key: str
    outcome: RevocationOutcome
    info: LeaseInfo | None

    def __str__(self) -> str:
        """Say what came of it, and what that means for a body that still runs."""
        who, sentence = "", _SENTENCES[self.outcome]
        if self.info is not None:
            who = f" of {self.info.holder!r} with fence {self.info.fence}"
            if self.outcome == "ended" and self.info.released_at is not None:
                sentence = "it was released already, and does not rest any more"
        return f"lease {self.key!r}{who}: {self.outcome}: {sentence}"


async def revoke(store: Store, key: str, fence: int | None, *, force: bool, limit: float) -> Revocation:
    """Ask the key's tenure, that with the fence where one is given, to give it up; by force, end it at once."""

    async def work(connection: Connection) -> Revocation:
        await settle(connection, store.name)
        arguments = (key, None if fence is None else str(fence), str(force), str(round(1000 * LOCK_LIMIT)))
        for _ in range(RACES):
            rows = await ask_again(connection, store.name.statements.revoke, *arguments)
            if not rows:
                return Revocation(key, "unknown", None)
            outcome, info = revocation_row(rows[0])
            if outcome is not None:
                return Revocation(key, outcome, info)
            # The row changed between the statement's look and its write. Each turn sees a later change.
        problem = f"the row of lease {key!r} cannot be changed: row-level security or a trigger keeps it from this role"
        raise LeaseTableError(store.name.quoted, problem)

    revocation: Revocation | None = None
    left, until = LOCK_TRIES, local_time() + limit
    while revocation is None:
        left -= 1
        try:
            revocation = await store.connections.run(f"the revocation of {key!r}", work, until - local_time())
        except asyncpg.LockNotAvailableError as error:
            if not left or local_time() >= until:
                msg = f"another session has the row of lease {key!r} locked: nothing was changed, try again later"
                raise TimeoutError(msg) from error
    level = logging.WARNING if revocation.outcome == "ended" else logging.INFO
    info = revocation.info
    extra = {
        "lease_key": key,
        "lease_holder": None if info is None else info.holder,
        "lease_fence": None if info is None else info.fence,
        "lease_outcome": revocation.outcome,
        "lease_force": force,
    }
    logger.log(level, "revocation asked for: %s", revocation, extra=extra)
    return revocation
