-- Reads one key: $1 key.
--
-- Invariant: reads only. Whether a row is held is the server's clock's word: held (live), resting (released,
-- kept shut by min_hold) or free (run out, or at rest since before the clock stepped back: see claim.sql).
-- Answers key, holder, fence, acquired_at, expires_at, seconds left, state, released_at, revoked_at; nulls for a key never
-- claimed.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
SELECT
    key,
    holder,
    fence,
    extract(epoch FROM acquired_at)::float8,
    extract(epoch FROM expires_at)::float8,
    (extract(epoch FROM expires_at) - extract(epoch FROM clock_timestamp()))::float8,
    CASE
        WHEN expires_at <= clock_timestamp() OR clock_timestamp() <= released_at - (expires_at - released_at) THEN 'free'
        WHEN released_at IS NOT NULL THEN 'resting'
        ELSE 'held'
    END,
    extract(epoch FROM released_at)::float8,
    extract(epoch FROM revoked_at)::float8,
    own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN lease ON key = $1::text AND $2::text = own.stamp
