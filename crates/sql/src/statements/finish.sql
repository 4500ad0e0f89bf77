-- Writes down how tasks ended. $1: the tasks. Answers which are written, and which somebody else holds locked.
-- A task that was stopped meanwhile stays stopped, and does not repeat.
WITH item AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS i(id bigint, old_pid integer, pid integer, state text, plan timestamptz,
        start timestamptz, stop timestamptz, output text, error text, attempts integer, remove boolean, next timestamptz)),
held AS MATERIALIZED (
    SELECT t.id FROM {table} t JOIN item i ON i.id = t.id
    WHERE (t.state IN ('TAKE', 'WORK') OR (t.state = 'STOP' AND t.stop IS NULL)) AND t.pid IS NOT DISTINCT FROM i.old_pid),
mine AS MATERIALIZED (
    SELECT t.id, t.state = 'STOP' AS stopped FROM {table} t WHERE t.id IN (SELECT id FROM held)
        AND t.state IN ('TAKE', 'WORK', 'STOP')
    FOR UPDATE OF t SKIP LOCKED),
{again}
written AS (
    UPDATE {table} t SET start = i.start, stop = i.stop, pid = i.pid, output = i.output, error = i.error,
        attempts = i.attempts, plan = coalesce(i.plan, t.plan),
        state = CASE WHEN m.stopped THEN t.state ELSE i.state::{state} END
    FROM mine m JOIN item i ON i.id = m.id WHERE t.id = m.id AND NOT (i.remove AND NOT m.stopped)),
removed AS (
    DELETE FROM {table} t USING mine m JOIN item i ON i.id = m.id
    WHERE t.id = m.id AND i.remove AND NOT m.stopped)
SELECT h.id FROM held h WHERE h.id NOT IN (SELECT id FROM mine)
