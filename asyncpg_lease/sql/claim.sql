-- Claims a key, or tells who has it: $1 key, $2 holder, $3 ttl in seconds.
--
-- Invariant: of any number of claims at once exactly one gets the row, and its fence is greater than every
-- fence the key had before. Who gets nothing writes nothing, locks nothing and waits for nobody (but for an
-- uncommitted first insert of the same key).
--   seen   what is there, without a lock
--   mine   this holder's own live tenure, locked so that the fenced transactions of its other handles let it pass; not
--          one that was asked to give the key up, which would be kept alive by whoever joins it again and again
--   ended  the row, locked, if it ran out; SKIP LOCKED, because a row that somebody else has locked is being
--          claimed or guarded: not ours now, and not worth a wait. FOR UPDATE, because that alone waits for a
--          fenced transaction's FOR KEY SHARE.
--   taken  the change of hands, or, for one's own live tenure, the join: same fence, never a shorter expiry
--   floor  where new keys start; the lock makes a prune that raises it wait for this insert
--   fresh  the first row of a key; without a conflict target, so that no race can raise a unique violation
-- A key that was released is free, or rests for as long as the release said. Where the server's clock has stepped back since
-- by more than that rest, it is over: that much is certain, and a key without a rest is never shut by such a step.
-- clock_timestamp() everywhere: the time of a transaction's start is too old after any wait for a lock.
-- Answers one row: how (free, taken_over, joined, unavailable, or resting under a min_hold), holder, fence,
-- acquired_at, expires_at and seconds left, the holder before; nulls where a race for a new key hid the winner.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH seen AS (
    SELECT
        holder, fence, acquired_at, expires_at, released_at,
        expires_at > clock_timestamp() AND (clock_timestamp() <= released_at - (expires_at - released_at)) IS NOT TRUE AS shut
    FROM lease WHERE key = $1::text
), mine AS (
    SELECT key, holder, released_at, true AS live FROM lease
    WHERE key = $1::text AND holder = $2::text AND released_at IS NULL AND expires_at > clock_timestamp()
        AND revoked_at IS NULL AND (SELECT holder = $2::text FROM seen) AND $4::text = 'stamp'
    FOR NO KEY UPDATE SKIP LOCKED
), ended AS (
    SELECT key, holder, released_at, false AS live FROM lease
    WHERE key = $1::text AND $4::text = 'stamp'
        AND (expires_at <= clock_timestamp() OR clock_timestamp() <= released_at - (expires_at - released_at))
    FOR UPDATE SKIP LOCKED
), free AS (
    SELECT * FROM mine UNION ALL SELECT * FROM ended
), taken AS (
    UPDATE lease AS target SET
        holder = $2::text,
        fence = CASE WHEN free.live THEN target.fence ELSE target.fence + 1 END,
        acquired_at = CASE WHEN free.live THEN least(target.acquired_at, clock_timestamp()) ELSE clock_timestamp() END,
        expires_at = greatest(CASE WHEN free.live THEN target.expires_at END, clock_timestamp() + make_interval(secs => $3::float8)),
        released_at = NULL,
        revoked_at = NULL
    FROM free
    WHERE target.key = free.key
    RETURNING
        CASE WHEN free.live THEN 'joined' WHEN free.released_at IS NULL THEN 'taken_over' ELSE 'free' END AS how,
        target.holder, target.fence, target.acquired_at, target.expires_at, free.holder AS before
), floor AS (
    SELECT fence FROM lease WHERE key = '' AND NOT EXISTS (SELECT FROM seen) AND $4::text = 'stamp' FOR KEY SHARE
), fresh AS (
    INSERT INTO lease (key, holder, fence, acquired_at, expires_at)
    SELECT $1::text, $2::text, coalesce((SELECT fence FROM floor), 0) + 1, clock_timestamp(), clock_timestamp() + make_interval(secs => $3::float8)
    WHERE NOT EXISTS (SELECT FROM seen) AND $4::text = 'stamp'
    ON CONFLICT DO NOTHING
    RETURNING holder, fence, acquired_at, expires_at
), result AS (
    SELECT how, holder, fence, acquired_at, expires_at, before FROM taken
    UNION ALL
    SELECT 'free', holder, fence, acquired_at, expires_at, NULL FROM fresh
    UNION ALL
    SELECT
        CASE WHEN released_at IS NOT NULL AND shut THEN 'resting' ELSE 'unavailable' END,
        holder, fence, acquired_at, CASE WHEN shut THEN expires_at ELSE least(expires_at, clock_timestamp()) END, NULL
    FROM seen
    WHERE NOT EXISTS (SELECT FROM taken) AND NOT EXISTS (SELECT FROM fresh)
)
SELECT
    how,
    holder,
    fence,
    extract(epoch FROM acquired_at)::float8,
    extract(epoch FROM expires_at)::float8,
    (extract(epoch FROM expires_at) - extract(epoch FROM clock_timestamp()))::float8,
    before,
    stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN result ON true
