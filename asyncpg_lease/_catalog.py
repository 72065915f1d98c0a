"""The questions that creating and verifying a lease table asks of PostgreSQL's catalogue.

All take and return text, so that no codec of the pool's for another type changes what is found.
"""

from __future__ import annotations

from asyncpg_lease._driver import stamped

__all__ = [
    "CHECKS",
    "COLUMNS",
    "FIND",
    "FIND_IN_PATH",
    "FIRST_IN_PATH",
    "INDEXES",
    "LOCK",
    "MARKED",
    "NAMESPACE",
    "TRAITS",
]

# By way of pg_class: a statement without any relation would go by the session's cache, in which a table that
# another session created while this one waited for the lock is missing still.
FIND = stamped(
    """
SELECT pg_class.oid::text, nspname::text
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass($1::text)
""",
    arguments=1,
)

# Not by to_regclass, which prefers temporary tables: a lease in one would keep nobody of another session out.
FIND_IN_PATH = stamped(
    """
SELECT pg_class.oid::text, nspname::text
FROM unnest(current_schemas(false)) WITH ORDINALITY AS path (schema, place)
JOIN pg_catalog.pg_namespace ON nspname = schema
JOIN pg_catalog.pg_class ON relnamespace = pg_namespace.oid
WHERE relname = $1::text AND relpersistence <> 't'
ORDER BY place
LIMIT 1
""",
    arguments=1,
)

FIRST_IN_PATH = stamped("""
SELECT nspname::text
FROM unnest(current_schemas(false)) WITH ORDINALITY AS path (schema, place)
JOIN pg_catalog.pg_namespace ON nspname = schema
WHERE pg_namespace.oid <> pg_my_temp_schema()
ORDER BY place
LIMIT 1
""")

COLUMNS = stamped(
    """
SELECT
    attname::text,
    format_type(atttypid, NULL)
        || coalesce((SELECT format(' COLLATE %I', collname) FROM pg_catalog.pg_collation
            WHERE pg_collation.oid = attcollation AND attname = 'key'), ''),
    attnotnull::text,
    (attidentity <> '' OR adbin IS NOT NULL)::text
FROM pg_catalog.pg_attribute
LEFT JOIN pg_catalog.pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = $1::text::oid AND attnum > 0 AND NOT attisdropped
""",
    arguments=1,
)

INDEXES = stamped(
    """
SELECT
    indexrelid::regclass::text,
    (SELECT conname::text FROM pg_catalog.pg_constraint WHERE conindid = indexrelid AND conrelid = indrelid),
    (
        indisprimary AND indisvalid AND indnatts = 1
        AND (SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = indrelid AND attnum = indkey[0]) = 'key'
    )::text
FROM pg_catalog.pg_index
WHERE indrelid = $1::text::oid
""",
    arguments=1,
)

CHECKS = stamped(
    """
SELECT 'there' FROM pg_catalog.pg_constraint
WHERE conrelid = $1::text::oid AND conname = 'lease_validity'
    AND pg_get_constraintdef(pg_constraint.oid) = 'CHECK ((expires_at > acquired_at))'
""",
    arguments=1,
)

TRAITS = stamped(
    """
SELECT
    relkind::text, relpersistence::text, current_user::text,
    (has_table_privilege(pg_class.oid, 'SELECT') AND has_table_privilege(pg_class.oid, 'INSERT')
        AND has_table_privilege(pg_class.oid, 'UPDATE'))::text
FROM pg_catalog.pg_class WHERE pg_class.oid = $1::text::oid
""",
    arguments=1,
)

MARKED = stamped(
    """
SELECT 'there' FROM pg_catalog.pg_attribute
WHERE attrelid = $1::text::oid AND attname::text = ANY(string_to_array($2::text, ',')) AND NOT attisdropped
""",
    arguments=2,
)

# Of the transaction, so a pooler does no harm. One lock for all names: two tables may be the first of one schema.
LOCK = stamped("SELECT pg_advisory_xact_lock(hashtext('asyncpg_lease'), hashtext('create'))::text")

NAMESPACE = stamped("SELECT 'there' FROM pg_catalog.pg_namespace WHERE nspname = $1::text", arguments=1)
