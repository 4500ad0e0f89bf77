-- Ends sessions that run tasks for a scheduler that is gone. $1: the processes of the sessions of this scheduler; $2: the ids
-- of its tasks. Returns how many such sessions exist. A session runs no task before the table shows the task with its process.
SELECT count(*), count(pg_terminate_backend(a.pid)) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
    AND a.pid <> ALL ($1::integer[]) AND a.pid IN (
        SELECT t.pid FROM {table} t WHERE t.state = 'WORK' AND t.remote IS NULL AND t.id <> ALL ($2::bigint[])
            AND t.start > a.backend_start)
