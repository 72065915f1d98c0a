-- Marks the reserved row as one that every claim under way can see: no parameters.
--
-- Invariant: touches that row alone, and not its fence. FOR UPDATE, so that a first claim under an older snapshot fails
-- with 40001 and is tried again: to a lock of the key a version that was merely updated is good enough.
-- Answers one row.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH floor AS (
    SELECT key FROM lease WHERE key = '' AND released_at IS NULL AND $1::text = 'stamp' FOR UPDATE
), settled AS (
    UPDATE lease AS target SET released_at = clock_timestamp() FROM floor WHERE target.key = floor.key
)
SELECT 'settled', own.stamp FROM (VALUES ('stamp'::text)) AS own (stamp)
