-- Reads one key: $1 key.
--
-- Invariant: reads only. Whether a row is held is the server's clock's word: held (live), resting (released,
-- kept shut by min_hold) or free (run out).
-- Answers key, holder, fence, acquired_at, expires_at, seconds left, state; no row for a key never claimed.
-- The last parameter is this statement's stamp, which the library puts in the place of 'stamp', and so is the last column
-- of the answer, which has one row at least, of nulls where there is nothing to tell: what was carried out in the place of
-- another statement does nothing, and its answer is not believed.
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
    own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN lease ON key = $1::text AND $2::text = own.stamp
