-- Part of claim.sql: the tasks that start, or that have expired.
candidate AS MATERIALIZED (
    SELECT g.key, g.running, g.is_remote, c.* FROM first_group g, now n CROSS JOIN LATERAL (
        -- A longer interval would exceed the range of timestamps and fail the statement for all tasks.
        SELECT t.id, greatest(t.max, 0) AS pri, t.max, t.count, least(t.live, '1000 years') AS live,
            CASE WHEN t.max < 0 THEN greatest(t.plan, g.slot) ELSE t.plan END AS plan,
            least(t.active, '1000 years') AS active, octet_length(t.input)::bigint AS bytes
        FROM {table} t
        WHERE t.state = 'PLAN' AND {key} = g.key AND t.plan <= n.at
            AND greatest(t.max, 0) >= g.running AND (t.max >= 0 OR g.slot IS NULL OR g.slot <= n.at)
        ORDER BY greatest(t.max, 0) DESC, t.id
        LIMIT least($3::bigint, g.pri::bigint - g.running + 1) + $4::bigint
        FOR UPDATE OF t SKIP LOCKED) c),
ranked AS MATERIALIZED (
    SELECT c.*, n.at >= c.plan + c.active AS expired,
        -- The position among the tasks of the group that have not expired.
        count(*) FILTER (WHERE n.at < c.plan + c.active) OVER (PARTITION BY c.key ORDER BY c.pri DESC, c.id) AS rank_in_group
    FROM candidate c, now n),
allowed AS MATERIALIZED (
    SELECT r.*, count(*) FILTER (WHERE NOT r.expired AND NOT r.is_remote)
            OVER (ORDER BY r.pri - r.running DESC, r.id) AS nth_local
    FROM ranked r WHERE r.expired OR r.pri - r.running - (r.rank_in_group - 1) >= 0),
-- However many more rows are read because others have expired, no more tasks start.
ordered AS MATERIALIZED (
    SELECT a.*, count(*) FILTER (WHERE NOT a.expired) OVER line AS nth, sum(a.bytes) OVER line - a.bytes AS bytes_before
    FROM allowed a WHERE a.expired OR a.is_remote OR a.nth_local <= $7::bigint
    WINDOW line AS (ORDER BY a.pri - a.running DESC, a.id)),
chosen AS MATERIALIZED (
    SELECT * FROM ordered WHERE (expired OR nth <= $3::bigint) AND bytes_before < $6::bigint
    ORDER BY pri - running DESC, id LIMIT $3::bigint + $4::bigint),
