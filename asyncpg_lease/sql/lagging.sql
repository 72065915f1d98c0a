-- Tells which keys have a lower fence still, the first few in the order of their bytes: $1 the fence.
--
-- Invariant: reads only, and leaves the reserved row out.
-- Answers rows of a key, or one of nulls.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
SELECT behind.key, own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN LATERAL (
    SELECT key FROM lease WHERE key <> '' AND fence < $1::text::bigint AND $2::text = own.stamp ORDER BY key LIMIT 10
) AS behind ON true
ORDER BY behind.key
