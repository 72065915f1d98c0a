-- Raises the floor from which new keys start: $1 the fence.
--
-- Invariant: the floor is never lowered. FOR UPDATE waits for first claims under way, which hold the row FOR KEY SHARE,
-- so when this is committed every row that began below the new floor can be seen. It also makes a first claim under
-- an older snapshot fail with 40001: to a lock of the key a version that was merely updated is good enough.
-- The fence comes as text, as in release.sql.
-- Answers one row, or nulls where there is no reserved row to raise.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH floor AS (
    SELECT key FROM lease WHERE key = '' AND fence < $1::text::bigint AND $2::text = 'stamp' FOR UPDATE
), raised AS (
    UPDATE lease AS target SET fence = $1::text::bigint FROM floor WHERE target.key = floor.key
)
SELECT target.holder, own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN lease AS target ON target.key = ''
