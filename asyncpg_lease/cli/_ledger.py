"""What the demo's workers write to: one row that checks the fence, and a record of every attempt and release."""

from datetime import datetime

import asyncpg

from asyncpg_lease.cli._verdict import Attempt, Release

_CREATE = """
CREATE TABLE {schema}.target (
    last_fence bigint NOT NULL,
    writes bigint NOT NULL
);
INSERT INTO {schema}.target VALUES (0, 0);
CREATE TABLE {schema}.attempt (
    worker text NOT NULL,
    fence bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    position bigint
);
CREATE TABLE {schema}.release (
    fence bigint NOT NULL,
    at timestamptz NOT NULL
);
CREATE FUNCTION {schema}.note_release() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.release VALUES (NEW.fence, NEW.released_at);
    RETURN NULL;
END
$$;
CREATE TRIGGER note_release AFTER UPDATE ON {schema}.lease
    FOR EACH ROW WHEN (OLD.released_at IS NULL AND NEW.released_at IS NOT NULL)
    EXECUTE FUNCTION {schema}.note_release();
"""

# One statement, so that a worker that is stopped in the middle keeps no lock. The position is counted in
# the row that all writes lock: whatever order the attempts are recorded in, it is that of the commits.
_WRITE = """
WITH written AS (
    UPDATE {schema}.target
    SET last_fence = $2, writes = writes + 1
    WHERE {check}
    RETURNING writes
)
INSERT INTO {schema}.attempt (worker, fence, position)
SELECT $1, $2::bigint, written.writes
FROM (VALUES (1)) AS always LEFT JOIN written ON true
RETURNING position IS NOT NULL, at
"""
_READ = "SELECT worker, fence, at, position FROM {schema}.attempt"
_READ_RELEASES = "SELECT fence, at FROM {schema}.release"
_FENCED = "last_fence <= $2"
_UNFENCED = "true"


class Ledger:
    """The resource that a lease protects in the demo.

    Args:
        pool: where it lives.
        schema: the schema that it has to itself, as an SQL identifier that needs no quotes.
        fenced: whether a write is refused when one of a higher fence has been accepted.
    """

    def __init__(self, pool: asyncpg.Pool, schema: str, *, fenced: bool) -> None:
        self._pool = pool
        self._schema = schema
        self._write = _WRITE.format(schema=schema, check=_FENCED if fenced else _UNFENCED)

    def __repr__(self) -> str:
        return f"<Ledger {self._schema}>"

    async def create(self) -> None:
        """Create the row and the records; the lease table must be there."""
        await self._pool.execute(_CREATE.format(schema=self._schema))

    async def write(self, worker: str, fence: int) -> tuple[bool, datetime]:
        """Try to write, and record the attempt; whether it was accepted, and when it was made."""
        ((accepted, at),) = await self._pool.fetch(self._write, worker, fence)
        return accepted, at

    async def attempts(self) -> list[Attempt]:
        """Read every attempt of every worker."""
        rows = await self._pool.fetch(_READ.format(schema=self._schema))
        return [Attempt(*row) for row in rows]

    async def releases(self) -> list[Release]:
        """Read when each tenure that ended in order was released."""
        rows = await self._pool.fetch(_READ_RELEASES.format(schema=self._schema))
        return [Release(*row) for row in rows]
