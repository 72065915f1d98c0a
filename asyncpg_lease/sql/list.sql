-- Lists keys in byte order: $1 the least key, $2 the key before which to end (null: none), $3 how many at
-- most (null: all).
--
-- Invariant: reads only, and leaves the reserved row out. A prefix is a range of the primary key's "C" order,
-- so it is found by the index.
-- Answers rows of key, holder, fence, acquired_at, expires_at, seconds left, state.
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
WHERE key >= $1::text AND ($2::text IS NULL OR key < $2::text) AND key <> ''
ORDER BY key
LIMIT $3::text::bigint
