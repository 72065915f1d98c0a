-- Renews tenures: $1 keys, $2 holders, $3 fences, $4 ttls in seconds, $5 whether other handles may share it.
--
-- Invariant: touches a row only where key, holder and fence are the tenure's and it is live: neither
-- released nor run out. Never inserts, never changes holder or fence, waits for no row lock.
-- SKIP LOCKED tells lost from locked: a live row of this tenure that could not be locked is busy, to be
-- tried again; only a row that is not this tenure's any more is lost.
-- A tenure that several handles may share is never shortened by the one with the shorter ttl. Any other is
-- set, not extended, so that after a backward step of the server's clock it does not stay far in the future;
-- acquired_at goes back with such a clock, or the row would break lease_validity.
-- All arrays are of text: a driver may have to ask the server about any other array type first, at the worst
-- of times, on the new connection of a renewal that is late already.
-- Answers one row for each tenure, in the order asked: position, renewed / busy / lost, the row's holder
-- and fence (null where there is no row), the new expires_at of a renewed one, and whether the row's tenure is asked to give
-- the key up: it is renewed all the same, since its body has to end first.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH asked AS (
    SELECT key, holder, fence::bigint, ttl::float8, shared::bool, ordinal
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
        WITH ORDINALITY AS tenure (key, holder, fence, ttl, shared, ordinal)
    WHERE $6::text = 'stamp'
), locked AS (
    SELECT target.key, asked.ordinal, asked.ttl, asked.shared
    FROM asked JOIN lease AS target ON target.key = asked.key
    WHERE target.holder = asked.holder AND target.fence = asked.fence
        AND target.released_at IS NULL AND target.expires_at > clock_timestamp()
    FOR NO KEY UPDATE OF target SKIP LOCKED
), longest AS (
    SELECT key, max(ttl) AS ttl, bool_or(shared) AS shared FROM locked GROUP BY key
), renewed AS (
    UPDATE lease AS target SET
        acquired_at = least(target.acquired_at, clock_timestamp()),
        expires_at = greatest(CASE WHEN longest.shared THEN target.expires_at END, clock_timestamp() + make_interval(secs => longest.ttl))
    FROM longest
    WHERE target.key = longest.key
    RETURNING target.key, target.expires_at, target.revoked_at
)
SELECT
    asked.ordinal,
    CASE
        WHEN asked.ordinal IN (SELECT locked.ordinal FROM locked) AND renewed.key IS NOT NULL THEN 'renewed'
        WHEN target.holder = asked.holder AND target.fence = asked.fence
            AND target.released_at IS NULL AND target.expires_at > clock_timestamp() THEN 'busy'
        ELSE 'lost'
    END,
    target.holder,
    target.fence,
    extract(epoch FROM renewed.expires_at)::float8,
    (coalesce(renewed.revoked_at, target.revoked_at) IS NOT NULL)::text,
    own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp)
LEFT JOIN asked ON true
LEFT JOIN lease AS target ON target.key = asked.key
LEFT JOIN renewed ON renewed.key = asked.key
ORDER BY asked.ordinal
