-- Part of claim.sql: the groups that have a task which could start if there were capacity.
chosen_group AS MATERIALIZED (
    SELECT key, count(*) AS tasks, bool_and(expired) AS expired FROM chosen GROUP BY key),
capacity_used AS MATERIALIZED (
    SELECT count(*) >= $3::bigint AS all_used, count(*) FILTER (WHERE NOT is_remote) >= $7::bigint AS local_used
    FROM chosen WHERE NOT expired),
waiting AS MATERIALIZED (
    SELECT g.key, g.is_remote, g.id, g.pri - g.running - coalesce(c.tasks, 0) AS allowance,
        row_number() OVER (
            PARTITION BY g.is_remote ORDER BY g.pri - g.running - coalesce(c.tasks, 0) DESC, g.id) AS nth
    FROM open_group g CROSS JOIN capacity_used u LEFT JOIN chosen_group c ON c.key = g.key
    WHERE c.key IS NULL OR (NOT c.expired AND (u.all_used OR (u.local_used AND NOT g.is_remote))
        AND g.pri - g.running >= c.tasks)),
