-- Asks a tenure to give its key up, or ends it at once: $1 key, $2 fence (null: whichever tenure has the key), $3 whether
-- by force, $4 milliseconds for which to wait for a row that is locked.
--
-- Invariant: touches the key's live tenure alone, and where a fence is given that tenure alone: never the one after the
-- operator looked. Without force nothing but the request is written, and the first one stays: the holder learns of it
-- by its next renewal, ends its body, and releases. By force the row runs out now, resting or not, and its holder's next
-- renewal finds it over; the microsecond and least() keep lease_validity as a release does. No fence moves, so this
-- passes a fenced transaction, which still keeps the successor out until it ends.
-- Answers one row: what was done (requested, ended) or why nothing was (other_tenure, free, resting, already_revoked;
-- raced where the row changed meanwhile: ask again), then the columns of get.sql; nulls for a key never claimed.
-- The limit is the transaction's own, and never raises what the session has, 0 being none: a statement that its client has
-- given up would still be carried out once the row is free.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH seen AS (
    SELECT key, holder, fence, acquired_at, expires_at, released_at, revoked_at
    FROM lease WHERE key = $1::text AND key <> '' AND $5::text = 'stamp'
), bound AS (
    SELECT set_config(
        'lock_timeout',
        CASE current_setting('lock_timeout')
            WHEN '0' THEN $4::text
            ELSE least($4::text::bigint, (1000 * extract(epoch FROM current_setting('lock_timeout')::interval))::bigint)::text
        END,
        true
    ) AS milliseconds
), revoked AS (
    UPDATE lease AS target SET
        revoked_at = CASE WHEN target.released_at IS NULL THEN coalesce(target.revoked_at, clock_timestamp()) ELSE target.revoked_at END,
        acquired_at = CASE WHEN $3::text::bool THEN least(target.acquired_at, clock_timestamp()) ELSE target.acquired_at END,
        expires_at = CASE
            WHEN $3::text::bool THEN
                greatest(clock_timestamp(), least(target.acquired_at, clock_timestamp()) + interval '1 microsecond')
            ELSE target.expires_at
        END
    WHERE target.key = $1::text AND target.key <> '' AND target.fence = coalesce($2::text::bigint, target.fence)
        AND target.expires_at > clock_timestamp()
        AND (clock_timestamp() <= target.released_at - (target.expires_at - target.released_at)) IS NOT TRUE
        AND $5::text = 'stamp' AND (SELECT milliseconds FROM bound) IS NOT NULL
        AND ($3::text::bool OR (target.released_at IS NULL AND target.revoked_at IS NULL))
    RETURNING key, holder, fence, acquired_at, expires_at, released_at, revoked_at
), result AS (
    SELECT CASE WHEN $3::text::bool THEN 'ended' ELSE 'requested' END AS outcome, revoked.* FROM revoked
    UNION ALL
    SELECT
        CASE
            WHEN fence <> $2::text::bigint THEN 'other_tenure'
            WHEN expires_at <= clock_timestamp() OR clock_timestamp() <= released_at - (expires_at - released_at) THEN 'free'
            WHEN NOT $3::text::bool AND released_at IS NOT NULL THEN 'resting'
            WHEN NOT $3::text::bool AND revoked_at IS NOT NULL THEN 'already_revoked'
            ELSE 'raced'
        END,
        seen.*
    FROM seen WHERE NOT EXISTS (SELECT FROM revoked)
)
SELECT
    outcome,
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
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN result ON true
