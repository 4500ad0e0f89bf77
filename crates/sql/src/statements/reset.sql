-- Gives back what nobody runs any more. $1: the ids that are under way here.
UPDATE {table} t SET state = 'PLAN', start = NULL, stop = NULL, pid = NULL
WHERE t.state IN ('TAKE', 'WORK') AND t.id <> ALL ($1::bigint[])
