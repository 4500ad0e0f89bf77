-- Returns tasks that no session runs. $1: the ids of the tasks of this scheduler, and of those whose outcome is not written
-- yet. A task that runs on a remote is never returned: the search for abandoned tasks ends it, this time or the next.
UPDATE {table} t SET state = 'PLAN', start = NULL, stop = NULL, pid = NULL
WHERE t.state IN ('TAKE', 'WORK') AND t.id <> ALL ($1::bigint[])
    AND (t.state = 'TAKE' OR t.remote IS NULL)
