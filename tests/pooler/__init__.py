"""Leases through PgBouncer; only a run with `--pooler pgbouncer` collects these tests."""
