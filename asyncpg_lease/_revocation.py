"""Revoking a tenure: what an operator asks for, and what came of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from asyncpg_lease._driver import ask_again, unreadable
from asyncpg_lease._rows import LeaseInfo, revocation_row
from asyncpg_lease.schema import settle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncpg_lease._driver import Connection
    from asyncpg_lease._store import Store

__all__ = ["Revocation", "RevocationOutcome", "revoke"]

RevocationOutcome: TypeAlias = Literal[
    "revoked", "expired", "already_revoked", "other_tenure", "resting", "free", "unknown"
]
"""What a revocation did, or why it did nothing.

``revoked``: the holder is asked to give the key up, and learns of it by its next renewal. ``expired``: by force, the
row has run out. ``already_revoked``: its holder was asked before, and has not left yet. ``other_tenure``: the tenure
with the given fence is over, and the row has another one. ``resting``: released already, and kept shut by its
min_hold. ``free``: nobody has the key. ``unknown``: nobody ever had it, or its row was pruned.
"""

_SENTENCES: Mapping[RevocationOutcome, str] = {
    "revoked": "its holder learns of it by its next renewal, and keeps the key until its body has ended",
    "expired": (
        "its row has run out, and others may start now; a body that still runs learns of it by its next renewal, and"
        " what it writes until then must be refused by its fence"
    ),
    "already_revoked": "its holder was asked before, and its body has not ended yet; force=True ends the tenure",
    "other_tenure": "the tenure that was to be revoked is over already; this one was not touched",
    "resting": "it was released already, and rests under its min_hold; force=True opens it at once",
    "free": "nobody has it",
    "unknown": "there is no such key",
}
_OUTCOMES: Mapping[str, RevocationOutcome] = {
    outcome: outcome for outcome in _SENTENCES if outcome != "unknown"
}  # the statement answers no row for that one

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
        who = "" if self.info is None else f" of {self.info.holder!r} with fence {self.info.fence}"
        return f"lease {self.key!r}{who}: {self.outcome}: {_SENTENCES[self.outcome]}"


async def revoke(store: Store, key: str, fence: int | None, *, force: bool, limit: float) -> Revocation:
    """Ask the key's tenure, that with the fence where one is given, to give it up; by force, end it at once."""

    async def work(connection: Connection) -> Revocation:
        await settle(connection, store.name)
        while True:
            arguments = (key, None if fence is None else str(fence), str(force))
            rows = await ask_again(connection, store.name.statements.revoke, *arguments)
            if not rows:
                return Revocation(key, "unknown", None)
            word, info = revocation_row(rows[0])
            # The row changed between the statement's look and its write. Each turn sees a later change.
            if word == "raced":
                continue
            if word not in _OUTCOMES:
                raise unreadable(word)
            return Revocation(key, _OUTCOMES[word], info)

    revocation = await store.connections.run(f"the revocation of {key!r}", work, limit)
    extra = {"lease_key": key, "lease_outcome": revocation.outcome, "lease_force": force}
    logger.log(logging.WARNING if revocation.outcome == "expired" else logging.INFO, "%s", revocation, extra=extra)
    return revocation
