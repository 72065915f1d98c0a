-- Reads one key: $1 key.
--
-- Invariant: reads only. Whether a row is held is the server's clock's word: held (live), resting (released,
-- kept shut by min_hold) or free (run out).
-- Answers key, holder, fence, acquired_at, expires_at, seconds left, state; no row for a key never claimed.
-- Last in each row comes 'stamp', in whose place the library puts this statement's own.
SELECT
    key,
    holder,
    fence,
    extract(epoch FROM acquired_at)::float8,
    extract(epoch FROM expires_at)::float8,
    (extract(epoch FROM expires_at) - extract(epoch FROM clock_timestamp()))::float8,
    CASE
        WHEN expires_at <= clock_timestamp() THEN 'free'
        WHEN released_at IS NOT NULL THEN 'resting'
        ELSE 'held'
    END,
    'stamp'::text
FROM lease
WHERE key = $1::text
