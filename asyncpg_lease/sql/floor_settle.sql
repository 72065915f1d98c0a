-- Marks the reserved row as one that every claim under way can see: no parameters.
--
-- Invariant: touches that row alone, and not its fence.
-- Answers one row.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH settled AS (
    UPDATE lease SET released_at = clock_timestamp() WHERE key = '' AND released_at IS NULL AND $1::text = 'stamp'
)
SELECT 'settled', own.stamp FROM (VALUES ('stamp'::text)) AS own (stamp)
