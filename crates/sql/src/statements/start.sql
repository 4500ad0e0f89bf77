-- Says that tasks run now. $1: the tasks and the sessions that they got. Answers those that are still to run.
WITH item AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS i(id bigint, pid integer, start timestamptz)),
mine AS MATERIALIZED (
    SELECT t.id FROM {table} t WHERE t.id IN (SELECT id FROM item) AND t.state = 'TAKE'
    FOR UPDATE OF t SKIP LOCKED)
UPDATE {table} t SET state = 'WORK', pid = i.pid, start = i.start
FROM item i JOIN mine m ON m.id = i.id WHERE t.id = i.id
RETURNING t.id
