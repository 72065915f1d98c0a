-- Counts what a prune may delete: $1 for how many seconds a row must have been free.
--
-- Invariant: changes nothing. The condition is prune.sql's, but for the floor, which is to be raised to what is found
-- here. The DELETE is of no row, and there for its right: a role without it is told at once, though nothing is old enough
-- yet, and before the floor is laid.
-- Answers one row: how many rows, the greatest of their fences (0 where there are none), the floor (0 where it was
-- never laid).
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH allowed AS (
    DELETE FROM lease WHERE false
)
SELECT found.rows, found.fence, coalesce((SELECT fence FROM lease WHERE key = ''), 0), own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN (
    SELECT count(*) AS rows, coalesce(max(fence), 0) AS fence
    FROM lease
    WHERE key <> '' AND completed_tick IS NULL AND expires_at <= clock_timestamp() - make_interval(secs => $1::float8)
) AS found ON $2::text = own.stamp
