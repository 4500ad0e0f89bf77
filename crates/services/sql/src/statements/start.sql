-- Says that tasks run now. $1: the tasks and the sessions that they got. Answers those that are still to run.
-- That of a task on a remote is on disk before it is answered.
WITH item AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS i(id bigint, pid integer)),
mine AS MATERIALIZED (
    -- One that is told twice, because the first answer was lost, runs all the same.
    SELECT m.id FROM item i CROSS JOIN LATERAL (
        SELECT t.id FROM {table} t
        WHERE t.id = i.id AND (t.state = 'TAKE' OR (t.state = 'WORK' AND t.pid = i.pid))
        FOR UPDATE OF t SKIP LOCKED) m)
-- By the clock of the database, as it is now: so it is later than the beginning of the session, by which others know it.
UPDATE {table} t SET state = 'WORK', pid = i.pid,
    start = CASE WHEN t.state = 'WORK' AND t.start IS NOT NULL THEN t.start ELSE clock_timestamp() END
FROM item i JOIN mine m ON m.id = i.id WHERE t.id = i.id
RETURNING t.id, encode(timestamptz_send(t.start), 'hex'), {sync}
