-- Marks tasks as running. $1: the tasks and the processes of their sessions. Returns those that still shall run.
-- The start of a task on a remote is on disk before it is answered.
WITH item AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS i(id bigint, pid integer)),
locked AS MATERIALIZED (
    -- A start that is sent again, because its answer was lost, is accepted.
    SELECT m.id FROM item i CROSS JOIN LATERAL (
        SELECT t.id FROM {table} t
        WHERE t.id = i.id AND (t.state = 'TAKE' OR (t.state = 'WORK' AND t.pid = i.pid))
        FOR UPDATE OF t SKIP LOCKED) m)
-- By the current clock of the database: so it is later than the start of the session, which orphans.sql compares it with.
UPDATE {table} t SET state = 'WORK', pid = i.pid,
    start = CASE WHEN t.state = 'WORK' AND t.start IS NOT NULL THEN t.start ELSE clock_timestamp() END
FROM item i JOIN locked l ON l.id = i.id WHERE t.id = i.id
RETURNING t.id, encode(timestamptz_send(t.start), 'hex'), {sync}
