-- Lays the reserved row, whose fence is the floor from which new keys start: no parameters.
--
-- Invariant: there is one such row afterwards; one that is there is not touched. It starts at 0, which changes
-- nothing for new keys. It never runs out, so that an operator's own DELETE of what has run out spares it.
-- Its released_at tells that no claim is under way any more that began before the row could be seen; whoever finds it
-- null waits for those, see floor_wait.sql.
-- Answers one row: settled or laid.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH laid AS (
    INSERT INTO lease (key, holder, fence, acquired_at, expires_at)
    SELECT '', 'floor', 0, clock_timestamp(), 'infinity'
    WHERE NOT EXISTS (SELECT FROM lease WHERE key = '') AND $1::text = 'stamp'
    ON CONFLICT DO NOTHING
)
SELECT
    CASE WHEN EXISTS (SELECT FROM lease WHERE key = '' AND released_at IS NOT NULL) THEN 'settled' ELSE 'laid' END,
    own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp)
