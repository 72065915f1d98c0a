-- Releases a tenure: $1 key, $2 holder, $3 fence (null: whichever this holder has, after a claim whose
-- answer was lost), $4 min_hold in seconds. The fence comes as text: a codec of the pool's own for bigint may
-- take no int, and would keep every row from being released.
--
-- Invariant: touches a row only where key, holder and fence are the tenure's and it is live. Expires the row
-- and keeps it: a deleted row would start again at fence 1, and a stale writer would pass as a new one.
-- The row runs out now, or when min_hold counted from acquired_at is over. released_at keeps a resting row
-- from being renewed, joined or guarded meanwhile. The microsecond and least() keep lease_validity also for
-- a lease that is released at once, and after the server's clock stepped back.
-- Answers one row with the fence that was released, or a null where the tenure was over already, and for how many
-- seconds more the key is shut, if its holder was asked for it (null: it was not): others are to have it then.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH released AS (
    UPDATE lease SET
        acquired_at = least(acquired_at, clock_timestamp()),
        expires_at = greatest(
            clock_timestamp(),
            least(acquired_at, clock_timestamp()) + greatest(make_interval(secs => $4::float8), interval '1 microsecond')
        ),
        released_at = clock_timestamp()
    WHERE key = $1::text AND holder = $2::text AND fence = coalesce($3::text::bigint, fence)
        AND released_at IS NULL AND expires_at > clock_timestamp() AND $5::text = 'stamp'
    RETURNING fence, expires_at, revoked_at
)
SELECT
    released.fence,
    CASE WHEN revoked_at IS NOT NULL THEN (extract(epoch FROM expires_at) - extract(epoch FROM clock_timestamp()))::float8 END,
    own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN released ON true
