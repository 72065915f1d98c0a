-- Tells which transactions may be first claims that cannot see the reserved row: $1 the table's name, $2 those that were
-- told before, of which it tells the ones that may be such a claim still (null: the first look).
--
-- Invariant: reads only. Such a claim is a statement under way and has a snapshot that is older than the row, so the
-- first look tells every transaction that has a snapshot and is not between two statements. (Of other roles' sessions
-- the state may be hidden: those are told.) Before it inserts, a claim has locked the table as whoever writes it does. So
-- a later look, which comes a moment after, keeps those that have that lock, or wait for any lock on the table, behind
-- DDL. What is about something else drops out, though it may take hours: a report, a dump, pg_sleep(), a wait for an
-- advisory lock, a fenced transaction, which has locked rows alone (but for one that guard.sql has checked).
-- What remains: under REPEATABLE READ and SERIALIZABLE the snapshot comes before the lock, by microseconds. A claim whose
-- server process stands still exactly there, for longer than from the first look to the second, is taken for something
-- else; if its key is made, used and pruned before it goes on, it makes the key anew at fence 1.
-- By transactions, not by the age of snapshots: on a busy server some snapshot is always as old as the longest write.
-- Answers rows of a transaction and its session's process id.
-- In the place of 'stamp' comes this statement's own, as its last argument too: see ask() in asyncpg_lease/_driver.py.
WITH locks AS MATERIALIZED (
    SELECT locktype, relation, mode, granted, virtualxid, virtualtransaction, pid FROM pg_catalog.pg_locks
), writers AS (
    SELECT virtualtransaction FROM locks
    WHERE locktype = 'relation' AND relation = to_regclass($1::text) AND (mode = 'RowExclusiveLock' OR NOT granted)
), older AS (
    SELECT locks.virtualtransaction, locks.pid
    FROM locks
    JOIN pg_catalog.pg_stat_activity AS session ON session.pid = locks.pid AND session.datname = current_database()
    WHERE locks.locktype = 'virtualxid' AND locks.virtualxid = locks.virtualtransaction
        AND locks.pid <> pg_backend_pid() AND session.backend_xmin IS NOT NULL
        AND coalesce(session.state, 'hidden') NOT LIKE 'idle%'
        AND CASE
            WHEN $2::text[] IS NULL THEN true
            ELSE locks.virtualtransaction = ANY($2::text[])
                AND locks.virtualtransaction IN (SELECT virtualtransaction FROM writers)
        END
)
SELECT older.virtualtransaction, older.pid::text, own.stamp
FROM (VALUES ('stamp'::text)) AS own (stamp) LEFT JOIN older ON $3::text = own.stamp
ORDER BY older.pid
