-- Gives back what nobody runs any more. $1: the ids that are under way here, or whose end is yet to be written. What runs on a
-- remote is never given back: one that was not seen by the look before this is seen by the next.
UPDATE {table} t SET state = 'PLAN', start = NULL, stop = NULL, pid = NULL
WHERE t.state IN ('TAKE', 'WORK') AND t.id <> ALL ($1::bigint[])
    AND (t.state = 'TAKE' OR t.remote IS NULL)
