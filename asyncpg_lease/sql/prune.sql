-- Deletes rows that have been free for long, a batch in the order of their keys: $1 the key after which to begin,
-- $2 for how many seconds a row must have been free, $3 how many at most.
--
-- Invariant: deletes a row only where the floor that is committed is as high as its fence, so that the key starts
-- above it when it is made anew. FOR UPDATE, which a guarded transaction keeps out, and SKIP LOCKED, so that nothing is
-- waited for: a row that somebody else has locked is being claimed or guarded. Spares rows with a completed_tick, which
-- tell what was done, and the reserved row, whose key comes after none.
-- By an array, which is looked up in the index: a join was planned as a scan of the whole table, for each batch.
-- Answers one row: how many rows, and the last one's key (null where there were none).
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH batch AS (
    SELECT key FROM lease
    WHERE key > $1::text AND completed_tick IS NULL
        AND expires_at <= clock_timestamp() - make_interval(secs => $2::float8)
        AND fence <= (SELECT fence FROM lease WHERE key = '') AND $4::text = 'stamp'
    ORDER BY key
    LIMIT $3::text::bigint
    FOR UPDATE SKIP LOCKED
), pruned AS (
    DELETE FROM lease WHERE key = ANY(ARRAY(SELECT key FROM batch)) RETURNING key
)
SELECT found.rows, found.last, own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp), (SELECT count(*) AS rows, max(key) AS last FROM pruned) AS found
