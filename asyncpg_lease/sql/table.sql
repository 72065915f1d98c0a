-- The lease table: one row a key, kept for ever so that its fence can only grow.
--
-- Invariant: the key is unique under every collation the system may have or get ("C" compares bytes, so
-- an operating system's new collation rules cannot make one key two), and a row's tenure ends after it began.
-- No other index and no other unique constraint: an index on expires_at would cost every renewal its
-- heap-only update; half-filled pages leave room for those.
-- The row with key '' is reserved: its fence is the floor from which new keys start.
CREATE TABLE lease (
    key            text COLLATE "C" PRIMARY KEY,
    holder         text NOT NULL,
    fence          bigint NOT NULL DEFAULT 1,
    acquired_at    timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,
    released_at    timestamptz,
    revoked_at     timestamptz,
    completed_tick timestamptz,
    CONSTRAINT lease_validity CHECK (expires_at > acquired_at)
) WITH (fillfactor = 50);
