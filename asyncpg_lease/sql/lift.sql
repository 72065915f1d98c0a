-- Lifts fences, a batch in the order of their keys: $1 the key after which to begin, $2 the fence, $3 how many at most.
--
-- Invariant: no fence is lowered, and a row keeps its holder and its expiry: the tenure that was in it is over, since it
-- had another fence, and the key stays shut until it would have been over by itself. A live tenure is revoked as well:
-- otherwise a claim by the same holder would join it, under a fence that nobody began and so nobody releases, beside a
-- body of its other handles that still unwinds. FOR UPDATE, which a guarded transaction keeps out until its end, and SKIP
-- LOCKED, so that no lock on the other rows of the batch is held meanwhile; lagging.sql tells what was passed over. The
-- reserved row, whose key comes after none, is floor_raise.sql's.
-- By an array, which is looked up in the index: a join was planned as a scan of the whole table, for each batch.
-- The fence comes as text, as in release.sql.
-- Answers one row: how many rows, and the last one's key (null where there were none).
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH batch AS (
    SELECT key FROM lease
    WHERE key > $1::text AND fence < $2::text::bigint AND $4::text = 'stamp'
    ORDER BY key
    LIMIT $3::text::bigint
    FOR UPDATE SKIP LOCKED
), lifted AS (
    UPDATE lease SET
        fence = $2::text::bigint,
        revoked_at = CASE
            WHEN released_at IS NULL AND expires_at > clock_timestamp() THEN coalesce(revoked_at, clock_timestamp())
            ELSE revoked_at
        END
    WHERE key = ANY(ARRAY(SELECT key FROM batch))
    RETURNING key
)
SELECT found.rows, found.last, own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp), (SELECT count(*) AS rows, max(key) AS last FROM lifted) AS found
