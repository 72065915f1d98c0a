-- Lists keys in byte order: $1 the least key, $2 the key before which to end (null: none), $3 in which state (null: any),
-- $4 how many at most (null: all).
--
-- Invariant: reads only, and leaves the reserved row out. A prefix is a range of the primary key's "C" order,
-- so it is found by the index.
-- Answers rows of key, holder, fence, acquired_at, expires_at, seconds left, state, released_at, revoked_at, or one of nulls.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
SELECT page.*, own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN LATERAL (
    SELECT * FROM (
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
            END AS state,
            extract(epoch FROM released_at)::float8,
            extract(epoch FROM revoked_at)::float8
        FROM lease
        WHERE key >= $1::text AND ($2::text IS NULL OR key < $2::text) AND key <> '' AND $5::text = own.stamp
    ) AS found
    WHERE $3::text IS NULL OR state = $3::text
    ORDER BY key
    LIMIT $4::text::bigint
) AS page ON true
ORDER BY page.key
