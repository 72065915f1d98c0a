-- Checks a tenure and keeps its successor out until the transaction ends, in a transaction that is open already:
-- $1 key, $2 holder, $3 fence.
--
-- Invariant: whoever changes hands or deletes takes FOR UPDATE first, which FOR KEY SHARE keeps out; renewals and
-- releases change no key and pass. FOR SHARE would hold up the holder's own heartbeat, and a plain SELECT would let
-- a successor start before the transaction ends.
--   guarded  the tenure, if it is live; what is locked stays locked until the end, or to a ROLLBACK TO before it
--   there    the key's row whatever it says, only under a snapshot that may be older than the row; fails with 40001
--            where it changed hands or was deleted since
--   latest   only then: inserts nothing, since the row is there and is locked, but fails with 40001 where the row's
--            latest version is not the one that the snapshot shows. Without it a lease that was released since
--            would pass: to a lock of the key an older version is good enough.
--            After the lock, so that it is not the older version's turn again, and for a tenure that is over too,
--            since it may have been renewed since.
-- The second look at the expiry is for a lock that was waited for, after both.
-- Answers one row: live or over, the row's holder and fence (null where there is no row), whether it was revoked, and
-- whether the snapshot is a new one of this statement's or may be an old one.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH own AS (
    SELECT CASE WHEN current_setting('transaction_isolation') LIKE 'read%' THEN 'new' ELSE 'old' END AS snapshot
), guarded AS (
    SELECT expires_at FROM lease
    WHERE key = $1::text AND holder = $2::text AND fence = $3::text::bigint
        AND released_at IS NULL AND expires_at > clock_timestamp() AND $4::text = 'stamp'
    FOR KEY SHARE
), there AS (
    SELECT key, holder, fence, acquired_at, expires_at FROM lease
    WHERE key = $1::text AND (SELECT snapshot FROM own) = 'old' AND (SELECT count(*) FROM guarded) >= 0
        AND $4::text = 'stamp'
    FOR KEY SHARE
), latest AS (
    INSERT INTO lease (key, holder, fence, acquired_at, expires_at)
    SELECT key, holder, fence, acquired_at, expires_at FROM there
    ON CONFLICT DO NOTHING
)
SELECT
    CASE
        WHEN (SELECT count(*) FROM there) >= 0 AND EXISTS (SELECT FROM guarded WHERE expires_at > clock_timestamp())
            THEN 'live'
        ELSE 'over'
    END,
    target.holder,
    target.fence,
    (target.revoked_at IS NOT NULL)::text,
    own.snapshot,
    'stamp'::text
FROM own LEFT JOIN lease AS target ON target.key = $1::text
