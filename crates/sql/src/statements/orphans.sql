-- Ends sessions of a scheduler that is gone. $1: how their names begin; $2: the sessions of this one; $3: the ids that
-- are under way here. Answers how many are still there.
SELECT count(*), count(pg_terminate_backend(a.pid)) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
    AND a.pid <> ALL ($2::integer[])
    AND (left(a.application_name, octet_length($1)) = $1 OR a.pid IN (
        SELECT t.pid FROM {table} t WHERE t.state = 'WORK' AND t.remote IS NULL AND t.id <> ALL ($3::bigint[])
            AND t.start > a.backend_start))
