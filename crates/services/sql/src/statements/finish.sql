-- Writes down how tasks ended. $1: the tasks. Answers those that somebody else holds locked; they are told again later.
-- A task that was stopped meanwhile stays stopped, and does not repeat.
WITH held AS MATERIALIZED (
    SELECT i.* FROM json_to_recordset($1::json) AS i(id bigint, old_pid integer, pid integer, state text, plan timestamptz,
        start timestamptz, stop timestamptz, output text, error text, attempts integer, remove boolean, next timestamptz)
    CROSS JOIN LATERAL (
        SELECT t.id FROM {table} t WHERE t.id = i.id AND t.pid IS NOT DISTINCT FROM i.old_pid
            AND (t.state IN ('TAKE', 'WORK') OR (t.state = 'STOP' AND t.stop IS NULL)) OFFSET 0) h),
mine AS MATERIALIZED (
    SELECT h.*, m.stopped FROM held h CROSS JOIN LATERAL (
        SELECT t.state = 'STOP' AS stopped FROM {table} t WHERE t.id = h.id AND t.state IN ('TAKE', 'WORK', 'STOP')
        FOR UPDATE OF t SKIP LOCKED) m),
{again}
written AS (
    UPDATE {table} t SET start = m.start, stop = m.stop, pid = m.pid, output = m.output, error = m.error,
        attempts = m.attempts, plan = coalesce(m.plan, t.plan),
        origin = CASE WHEN m.plan IS NULL THEN t.origin ELSE coalesce(t.origin, t.plan) END,
        state = CASE WHEN m.stopped THEN t.state ELSE m.state::{state} END
    FROM mine m WHERE t.id = m.id AND NOT (m.remove AND NOT m.stopped)),
removed AS (
    DELETE FROM {table} t USING mine m WHERE t.id = m.id AND m.remove AND NOT m.stopped)
SELECT h.id FROM held h WHERE h.id NOT IN (SELECT id FROM mine)
