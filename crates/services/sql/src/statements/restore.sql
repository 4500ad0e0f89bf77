-- Writes again which tasks this scheduler runs, where a crash of the database lost that. $1: the tasks, each with its process.
-- A row that was changed in another way has a process or an end, and stays unchanged.
UPDATE {table} t SET pid = i.pid, start = i.start,
    state = CASE WHEN t.state = 'STOP' THEN t.state WHEN i.pid IS NULL THEN 'TAKE' ELSE 'WORK' END
FROM json_to_recordset($1::json) AS i(id bigint, pid integer, start timestamptz)
WHERE t.id = i.id AND t.pid IS NULL AND t.stop IS NULL AND (
    t.state = 'PLAN' OR (t.state IN ('TAKE', 'STOP') AND i.pid IS NOT NULL))
