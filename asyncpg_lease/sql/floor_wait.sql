-- Tells which transactions may be first claims that cannot see the reserved row: $1 the table's name, $2 those that were
-- told before, of which it tells the ones that still go on (null: all).
--
-- Invariant: reads only, and misses no claim whose snapshot is older than the row. Such a claim is a statement under way
-- and has a snapshot now, and either the table is among what it has locked, or, under REPEATABLE READ and SERIALIZABLE,
-- where the snapshot comes first, it has locked none but the catalogue (whose tables' numbers are below 16384).
-- So a transaction is not waited for that has locked other tables alone, which is about something else and may take
-- hours, nor one that is between two statements, as fenced transactions are most of the time. (Of other roles' sessions
-- the state may be hidden: those are.)
-- By transactions, not by the age of snapshots: on a busy server some snapshot is always as old as the longest write.
-- Answers rows of a transaction and its session's process id.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH locks AS MATERIALIZED (
    SELECT locktype, database, relation, virtualxid, virtualtransaction, pid FROM pg_catalog.pg_locks
), tables AS (
    SELECT locks.virtualtransaction, bool_or(locks.relation = to_regclass($1::text)) AS ours
    FROM locks
    JOIN pg_catalog.pg_database ON pg_database.oid = locks.database AND datname = current_database()
    WHERE locks.locktype = 'relation' AND locks.relation >= 16384
    GROUP BY locks.virtualtransaction
), older AS (
    SELECT locks.virtualtransaction, locks.pid
    FROM locks
    JOIN pg_catalog.pg_stat_activity AS session ON session.pid = locks.pid AND session.datname = current_database()
    LEFT JOIN tables ON tables.virtualtransaction = locks.virtualtransaction
    WHERE locks.locktype = 'virtualxid' AND locks.virtualxid = locks.virtualtransaction
        AND locks.pid <> pg_backend_pid() AND session.backend_xmin IS NOT NULL
        AND coalesce(session.state, 'hidden') NOT LIKE 'idle%'
        AND CASE
            WHEN $2::text[] IS NULL THEN tables.ours IS NOT FALSE
            ELSE locks.virtualtransaction = ANY($2::text[])
        END
)
SELECT older.virtualtransaction, older.pid::text, own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN older ON $3::text = own.stamp
ORDER BY older.pid
