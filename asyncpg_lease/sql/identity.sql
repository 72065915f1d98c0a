-- Tells which database this is: no parameters.
--
-- Invariant: the same for every connection to one database, and another for every other database and server. A
-- standby has its primary's system identifier, and keeps it when it is promoted: a promoted clone cannot be told
-- from the server that it was cloned from.
-- Answers one row: the server's system identifier, the database's oid.
SELECT
    (SELECT system_identifier::text FROM pg_control_system()),
    (SELECT oid::text FROM pg_catalog.pg_database WHERE datname = current_database())
