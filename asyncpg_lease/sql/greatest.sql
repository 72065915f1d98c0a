-- Tells the greatest fence of the table, the floor included: no parameters.
--
-- Invariant: reads only.
-- Answers one row: the fence, or a null in an empty table.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
SELECT found.fence, own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN (SELECT max(fence) AS fence FROM lease) AS found ON $1::text = own.stamp
