-- Part of claim.sql: the groups that have a task which may start, with their first such task.
-- Where few tasks are due, only their groups are read, however many other groups have tasks for later.
due AS MATERIALIZED (
    SELECT {key} AS key FROM {table}
    WHERE state = 'PLAN' AND plan <= (SELECT at FROM now) AND $5::uuid[] IS NULL ORDER BY plan LIMIT 101),
few_due AS MATERIALIZED (SELECT count(*) <= 100 AS yes FROM due),
-- Otherwise the index is read from group to group, however many tasks each has.
planned AS (
    (SELECT {key} AS key FROM {table}
        WHERE state = 'PLAN' AND $5::uuid[] IS NULL AND NOT (SELECT yes FROM few_due) ORDER BY 1 LIMIT 1)
    UNION ALL
    SELECT (SELECT {key} FROM {table} WHERE state = 'PLAN' AND {key} > p.key ORDER BY 1 LIMIT 1)
    FROM planned p WHERE p.key IS NOT NULL),
-- When only tasks have ended, only their groups are claimed.
covered AS (
    SELECT key FROM planned UNION ALL SELECT unnest($5::uuid[])
    UNION ALL SELECT DISTINCT d.key FROM due d WHERE (SELECT yes FROM few_due)),
open_group AS MATERIALIZED (
    SELECT c.key, b.running, b.slot, top.pri, top.id, top.is_remote
    FROM now n CROSS JOIN busy CROSS JOIN covered c
    CROSS JOIN LATERAL (
        SELECT coalesce((one ->> 'running')::integer, 0) AS running, (one ->> 'slot')::timestamptz AS slot
        FROM (SELECT busy.by_key -> c.key::text AS one) o) b
    CROSS JOIN LATERAL (
        SELECT greatest(t.max, 0) AS pri, t.id, t.remote IS NOT NULL AS is_remote FROM {table} t
        WHERE t.state = 'PLAN' AND {key} = c.key AND t.plan <= n.at
            AND greatest(t.max, 0) >= b.running AND (t.max >= 0 OR b.slot IS NULL OR b.slot <= n.at)
        ORDER BY greatest(t.max, 0) DESC, t.id LIMIT 1) top
    WHERE c.key IS NOT NULL),
-- However many groups wait, only the first of them can start tasks: no rows of the others are locked.
first_group AS MATERIALIZED (
    (SELECT * FROM open_group WHERE NOT is_remote ORDER BY pri - running DESC, id
        LIMIT least($3::bigint, $7::bigint) + $4::bigint)
    UNION ALL
    (SELECT * FROM open_group WHERE is_remote ORDER BY pri - running DESC, id LIMIT $3::bigint + $4::bigint)),
