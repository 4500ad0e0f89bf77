-- Gives back what nobody runs any more. $1: the ids that are under way here, or whose end is yet to be written.
UPDATE {table} t SET state = 'PLAN', start = NULL, stop = NULL, pid = NULL
WHERE t.state IN ('TAKE', 'WORK') AND t.id <> ALL ($1::bigint[])
