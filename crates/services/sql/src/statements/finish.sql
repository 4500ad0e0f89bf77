-- Writes the outcomes of tasks. $1: the outcomes. Returns the ids of rows that another transaction holds locked, which are sent
-- again later. A task that was stopped meanwhile stays stopped, and does not repeat.
WITH running AS MATERIALIZED (
    SELECT i.* FROM json_to_recordset($1::json) AS i(id bigint, old_pid integer, pid integer, state text, plan timestamptz,
        start timestamptz, stop timestamptz, output text, error text, attempts integer, remove boolean, next timestamptz)
    CROSS JOIN LATERAL (
        SELECT t.id FROM {table} t WHERE t.id = i.id AND t.pid IS NOT DISTINCT FROM i.old_pid
            AND (t.state IN ('TAKE', 'WORK') OR (t.state = 'STOP' AND t.stop IS NULL)) OFFSET 0) h),
locked AS MATERIALIZED (
    SELECT r.*, m.stopped FROM running r CROSS JOIN LATERAL (
        SELECT t.state = 'STOP' AS stopped FROM {table} t WHERE t.id = r.id AND t.state IN ('TAKE', 'WORK', 'STOP')
        FOR UPDATE OF t SKIP LOCKED) m),
{repeat}
written AS (
    UPDATE {table} t SET start = l.start, stop = l.stop, pid = l.pid, output = l.output, error = l.error,
        attempts = l.attempts, plan = coalesce(l.plan, t.plan),
        origin = CASE WHEN l.plan IS NULL THEN t.origin ELSE coalesce(t.origin, t.plan) END,
        state = CASE WHEN l.stopped THEN t.state ELSE l.state::{state} END
    FROM locked l WHERE t.id = l.id AND NOT (l.remove AND NOT l.stopped)),
removed AS (
    DELETE FROM {table} t USING locked l WHERE t.id = l.id AND l.remove AND NOT l.stopped)
SELECT r.id FROM running r WHERE r.id NOT IN (SELECT id FROM locked)
