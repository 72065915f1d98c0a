-- Checks a tenure and keeps its successor out until the transaction ends, as the transaction's first statement:
-- $1 key, $2 holder, $3 fence, $4 milliseconds for which the transaction may be idle (null: as the session has it).
--
-- Invariant: whoever changes hands or deletes takes FOR UPDATE first, which FOR KEY SHARE keeps out; renewals and
-- releases change no key and pass. FOR SHARE would hold up the holder's own heartbeat, and a plain SELECT would let
-- a successor start before the transaction ends.
-- Apart from guard.sql, since a snapshot that is new has no older versions to be asked about: half the time.
-- The limit never raises what the session has, 0 being none, and is set only where there is something to keep shut.
-- The second look at the expiry is for a lock that was waited for: after the row has come.
-- Answers one row: live or over. What the row said then is not told: the snapshot is of before any wait.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH guarded AS (
    SELECT
        expires_at,
        CASE WHEN $4::text IS NOT NULL THEN set_config(
            'idle_in_transaction_session_timeout',
            CASE current_setting('idle_in_transaction_session_timeout')
                WHEN '0' THEN $4::text
                ELSE least(
                    $4::text::bigint,
                    (1000 * extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval))::bigint
                )::text
            END,
            true
        ) END
    FROM lease
    WHERE key = $1::text AND holder = $2::text AND fence = $3::text::bigint
        AND released_at IS NULL AND expires_at > clock_timestamp() AND $5::text = 'stamp'
    FOR KEY SHARE
)
SELECT CASE WHEN guarded.expires_at > clock_timestamp() THEN 'live' ELSE 'over' END, own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN guarded ON true
