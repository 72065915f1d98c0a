-- Fencing in your own statements and on your own tables: for a migration of yours. The library itself needs none of it.
--
-- Invariant: no tenure that is over passes the function, and no fence that the trigger is set on ever falls.
--
-- lease_assert_held(key, holder, fence) fails with SQLSTATE AL001 unless that tenure is live, and keeps its successor
-- out until the transaction ends; a transaction whose snapshot is older than the row fails with 40001. Call it in a
-- statement of its own before what it guards, by PERFORM in a function: in a condition or a WITH of another one the
-- planner may leave it out, or run it last. Who calls it needs SELECT, INSERT and UPDATE on the lease table.
--
-- lease_reject_stale_fence(column [, key column ..]) is a trigger. It refuses with SQLSTATE AL002 whatever would lower
-- a row's fence or leave it out; an equal one is allowed, since one tenure writes many times. With key columns it also
-- refuses a new row where one with the same values in them has a higher fence: a committed one, in the same partition.
--
--   CREATE TRIGGER fenced BEFORE INSERT OR UPDATE ON report
--       FOR EACH ROW EXECUTE FUNCTION lease_reject_stale_fence('last_fence');
--
-- An UPDATE that does not set the column passes as the last writer: every writer has to set it. Key columns are to be
-- NOT NULL. A BEFORE trigger of a later name may change what this one has looked at; AFTER, it looks last.
-- Both find their tables through the search_path under which this file is run, and no session's temporary ones.
-- Where the lease table has another name put that after FROM and INTO in the first function.
CREATE OR REPLACE FUNCTION lease_assert_held(key text, holder text, fence bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    held bool;
    inserted bool := false;
    seen record;
BEGIN
    PERFORM FROM lease AS target
    WHERE target.key = lease_assert_held.key AND target.holder = lease_assert_held.holder
        AND target.fence = lease_assert_held.fence
        AND target.released_at IS NULL AND target.expires_at > clock_timestamp()
    FOR KEY SHARE;
    held := FOUND;
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        -- Fails with 40001 where the snapshot does not show the row's latest version. Where there is no row at all
        -- the error below undoes it.
        INSERT INTO lease (key, holder, fence, acquired_at, expires_at)
        SELECT $1, $2, $3, clock_timestamp(), 'infinity' WHERE $1 IS NOT NULL AND $2 IS NOT NULL AND $3 IS NOT NULL
        ON CONFLICT DO NOTHING;
        inserted := FOUND;
    END IF;
    -- Once more, since a lock may have been waited for.
    SELECT target.holder, target.fence, target.expires_at > clock_timestamp() AS live INTO seen
    FROM lease AS target WHERE target.key = lease_assert_held.key AND NOT inserted;
    IF NOT held OR seen.live IS NOT TRUE THEN
        RAISE EXCEPTION USING
            ERRCODE = 'AL001',
            MESSAGE = format('lease %L of %L with fence %s is not held', key, holder, coalesce(fence::text, 'none')),
            DETAIL = format('The row has holder %L and fence %s.', seen.holder, coalesce(seen.fence::text, 'none')),
            HINT = 'Roll back and stop the job: its tenure is over.';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION lease_reject_stale_fence() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
    least_allowed bigint;
    keys name[] := TG_ARGV[1:];
    same text;
    row_key text;
BEGIN
    IF TG_NARGS = 0 OR TG_LEVEL <> 'ROW' OR TG_OP NOT IN ('INSERT', 'UPDATE') THEN
        RAISE EXCEPTION 'trigger % on %: it is for each row, on INSERT or UPDATE, and takes the column of the fence, as in lease_reject_stale_fence(''last_fence'')',
            TG_NAME, TG_RELID::regclass;
    END IF;
    EXECUTE format('SELECT ($1).%I', TG_ARGV[0]) INTO own USING NEW;
    IF TG_OP = 'UPDATE' THEN
        EXECUTE format('SELECT ($1).%I', TG_ARGV[0]) INTO least_allowed USING OLD;
    ELSIF TG_NARGS > 1 THEN
        SELECT string_agg(format('other.%1$I = ($1).%1$I', name), ' AND ') INTO same FROM unnest(keys) AS name;
        EXECUTE format('SELECT max(other.%I) FROM %s AS other WHERE %s', TG_ARGV[0], TG_RELID::regclass, same)
            INTO least_allowed USING NEW;
    END IF;
    IF own < least_allowed OR own IS NULL THEN
        IF keys = '{}' THEN
            SELECT coalesce(array_agg(attname), '{}') INTO keys FROM pg_index JOIN pg_attribute ON attrelid = indrelid
            WHERE indrelid = TG_RELID AND indisprimary AND attnum = ANY (indkey);
        END IF;
        -- Not the whole row: it may be long, and is not for everybody who reads the log.
        EXECUTE format('SELECT left(concat_ws('', '', NULL %s), 200)', (
            SELECT string_agg(format(', ($1).%I::text', name), '') FROM unnest(keys) AS name
        )) INTO row_key USING NEW;
        RAISE EXCEPTION USING
            ERRCODE = 'AL002',
            MESSAGE = CASE WHEN own IS NULL THEN format('no fence for %s: %I is not set', TG_RELID::regclass, TG_ARGV[0])
                ELSE format('stale fence %s for %s: fence %s has written already', own, TG_RELID::regclass, least_allowed) END,
            DETAIL = format('Key (%s)=(%s).', array_to_string(keys, ', '), row_key),
            HINT = CASE WHEN own IS NULL THEN 'Set it to the fence of the lease.'
                ELSE 'Stop the job: somebody else has its lease by now.' END;
    END IF;
    RETURN NEW;
END
$$;

-- Schemas by name, since "$user" would be each caller's own, and temporary tables last, where they would be first.
DO $$
DECLARE
    path text := (SELECT string_agg(quote_ident(name), ', ') FROM unnest(current_schemas(false)) AS schema (name));
BEGIN
    EXECUTE format('ALTER FUNCTION lease_assert_held(text, text, bigint) SET search_path = %s, pg_temp', path);
    EXECUTE format('ALTER FUNCTION lease_reject_stale_fence() SET search_path = %s, pg_temp', path);
END
$$;
