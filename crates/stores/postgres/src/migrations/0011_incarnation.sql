-- Since when this database receives heartbeats. Crash recovery and the promotion of a replica empty a table that is not logged, so a
-- missing row says that heartbeats may have been missed, whatever ended the database before.
CREATE UNLOGGED TABLE taskyard.incarnation (began bigint NOT NULL);
INSERT INTO taskyard.incarnation VALUES (0);

-- The heartbeat before the last one.
ALTER TABLE taskyard.server ADD COLUMN previous bigint;

-- A later delivery of a task has a larger lease number, whichever server makes it. Numbers that a connection took ahead would be issued
-- late.
ALTER SEQUENCE taskyard.lease CACHE 1;
