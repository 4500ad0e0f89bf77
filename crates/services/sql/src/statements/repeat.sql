-- Part of finish.sql: inserts the next run of tasks that repeat.
next_run AS (
    INSERT INTO {table} (plan, parent, chain, state{names})
    SELECT l.next, t.id, coalesce(t.chain, t.id), 'PLAN'{values} FROM locked l JOIN {table} t ON t.id = l.id
    WHERE l.next IS NOT NULL AND NOT l.stopped),
