-- When the keys of ended tasks are free: a row for each moment and each call that ended tasks. The end of a task changes the row of its
-- key, and with an index of that moment it wrote two index entries as well; now it writes none if the page has room, so half of it stays free.

-- All calls begin with the table of tubes, so none is between the old functions and the new ones.
LOCK TABLE taskyard.tube IN ACCESS EXCLUSIVE MODE;
CREATE TABLE taskyard.ended_keys (
    tube            integer NOT NULL,
    until           bigint NOT NULL,
    -- A key whose row has another moment has been given to another task since.
    keys            text[] COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE taskyard.ended_keys ALTER COLUMN keys SET STORAGE EXTERNAL;
CREATE INDEX ended_keys_until ON taskyard.ended_keys (tube, until);
DROP INDEX taskyard.key_until;
ALTER TABLE taskyard.key SET (fillfactor = 50);
INSERT INTO taskyard.ended_keys (tube, until, keys)
    SELECT k.tube, k.until, array_agg(k.key ORDER BY k.id) FROM taskyard.key k WHERE k.until IS NOT NULL GROUP BY k.tube, k.until;
