"""What a job writes in runs with several processes: a table whose rows refuse a lower fence."""

from __future__ import annotations

from importlib.resources import files

STALE = "AL002"
"""The SQLSTATE of the refusal."""

JOB = (
    files("asyncpg_lease").joinpath("sql/fencing.sql").read_text()
    + """
;
CREATE TABLE page (key text PRIMARY KEY, last_fence bigint NOT NULL);
CREATE TRIGGER fenced BEFORE INSERT OR UPDATE ON page
    FOR EACH ROW EXECUTE FUNCTION lease_reject_stale_fence('last_fence');
"""
)
"""A key's page holds the last fence that has written it."""
