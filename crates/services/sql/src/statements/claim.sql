-- Claims the tasks that may begin now. $1: groups with sessions or a pause, by key; $2: idle sessions; $3: how many may begin
-- in all; $4: how many more rows of a group to look at, because many are not active any more; $5: the groups to look at, all
-- if it is null; $6: how many bytes of input may be read; $7: how many may begin in this database, without those on remotes.
-- A claim that brings a task for a remote is on disk before it is answered: a crash must not let it begin twice.
-- A task that fits the session with the same place in its group is given to it and runs at once (WORK), others wait for a
-- session of their own (TAKE).
WITH RECURSIVE now AS MATERIALIZED (SELECT clock_timestamp() AS at),
-- Looked up by key: a join would compare every group with every other.
busy AS MATERIALIZED (SELECT $1::jsonb AS by_key),
-- Those first that have the most left to do.
worker AS MATERIALIZED (
    SELECT w.*, row_number() OVER (PARTITION BY w.key ORDER BY w.done, w.since DESC, w.max, w.pid) AS place
    FROM json_to_recordset($2::json) AS w(key uuid, pid integer, max integer, done integer, since timestamptz)),
-- Where few tasks are due, their groups are all there is to look at, however many others wait for tomorrow.
due AS MATERIALIZED (
    SELECT {key} AS key FROM {table}
    WHERE state = 'PLAN' AND plan <= (SELECT at FROM now) AND $5::uuid[] IS NULL ORDER BY plan LIMIT 101),
few AS MATERIALIZED (SELECT count(*) <= 100 AS yes FROM due),
-- Otherwise from group to group through the index, however many tasks each has.
head AS (
    (SELECT {key} AS key FROM {table}
        WHERE state = 'PLAN' AND $5::uuid[] IS NULL AND NOT (SELECT yes FROM few) ORDER BY 1 LIMIT 1)
    UNION ALL
    SELECT (SELECT {key} FROM {table} WHERE state = 'PLAN' AND {key} > h.key ORDER BY 1 LIMIT 1)
    FROM head h WHERE h.key IS NOT NULL),
-- When only tasks have ended, only their groups have more room.
looked AS (
    SELECT key FROM head UNION ALL SELECT unnest($5::uuid[])
    UNION ALL SELECT DISTINCT d.key FROM due d WHERE (SELECT yes FROM few)),
room AS MATERIALIZED (
    SELECT h.key, b.running, b.slot, top.pri, top.id, top.far
    FROM now n CROSS JOIN busy CROSS JOIN looked h
    CROSS JOIN LATERAL (
        SELECT coalesce((one ->> 'running')::integer, 0) AS running, (one ->> 'slot')::timestamptz AS slot
        FROM (SELECT busy.by_key -> h.key::text AS one) o) b
    CROSS JOIN LATERAL (
        SELECT greatest(t.max, 0) AS pri, t.id, t.remote IS NOT NULL AS far FROM {table} t
        WHERE t.state = 'PLAN' AND {key} = h.key AND t.plan <= n.at
            AND greatest(t.max, 0) >= b.running AND (t.max >= 0 OR b.slot IS NULL OR b.slot <= n.at)
        ORDER BY greatest(t.max, 0) DESC, t.id LIMIT 1) top
    WHERE h.key IS NOT NULL),
-- However many groups wait, only the first of them can begin: no rows of the others are locked.
best AS MATERIALIZED (
    (SELECT * FROM room WHERE NOT far ORDER BY pri - running DESC, id LIMIT least($3::bigint, $7::bigint) + $4::bigint)
    UNION ALL
    (SELECT * FROM room WHERE far ORDER BY pri - running DESC, id LIMIT $3::bigint + $4::bigint)),
seen AS MATERIALIZED (
    SELECT r.key, r.running, r.far, c.* FROM best r, now n CROSS JOIN LATERAL (
        -- Longer than any moment lasts, an interval would make the statement fail for all.
        SELECT t.id, greatest(t.max, 0) AS pri, t.max, t.count, least(t.live, '1000 years') AS live,
            CASE WHEN t.max < 0 THEN greatest(t.plan, r.slot) ELSE t.plan END AS plan,
            least(t.active, '1000 years') AS active, octet_length(t.input)::bigint AS bytes
        FROM {table} t
        WHERE t.state = 'PLAN' AND {key} = r.key AND t.plan <= n.at
            AND greatest(t.max, 0) >= r.running AND (t.max >= 0 OR r.slot IS NULL OR r.slot <= n.at)
        ORDER BY greatest(t.max, 0) DESC, t.id
        LIMIT least($3::bigint, r.pri::bigint - r.running + 1) + $4::bigint
        FOR UPDATE OF t SKIP LOCKED) c),
ranked AS MATERIALIZED (
    SELECT s.*, n.at >= s.plan + s.active AS expired,
        -- How many of the group that are to run stand before it, itself included.
        count(*) FILTER (WHERE n.at < s.plan + s.active) OVER (PARTITION BY s.key ORDER BY s.pri DESC, s.id) AS place
    FROM seen s, now n),
fit AS MATERIALIZED (
    SELECT r.*, count(*) FILTER (WHERE NOT r.expired AND NOT r.far) OVER (ORDER BY r.pri - r.running DESC, r.id) AS nth_local
    FROM ranked r WHERE r.expired OR r.pri - r.running - (r.place - 1) >= 0),
-- However many are looked at because others were too late, no more of them begin.
line AS MATERIALIZED (
    SELECT f.*, count(*) FILTER (WHERE NOT f.expired) OVER line AS nth, sum(f.bytes) OVER line - f.bytes AS bytes_before
    FROM fit f WHERE f.expired OR f.far OR f.nth_local <= $7::bigint
    WINDOW line AS (ORDER BY f.pri - f.running DESC, f.id)),
chosen AS MATERIALIZED (
    SELECT * FROM line WHERE (expired OR nth <= $3::bigint) AND bytes_before < $6::bigint
    ORDER BY pri - running DESC, id LIMIT $3::bigint + $4::bigint),
given AS MATERIALIZED (
    SELECT c.id, c.plan, c.key, c.expired, w.pid FROM chosen c CROSS JOIN now n
    LEFT JOIN worker w ON w.key = c.key AND w.place = c.place AND NOT c.expired AND c.max >= w.max
        AND CASE WHEN c.count > 0 AND c.live > '0 sec' THEN w.done < c.count AND n.at < w.since + c.live
            ELSE w.done < c.count OR (c.live > '0 sec' AND n.at < w.since + c.live) END),
-- Groups that have a task which could begin if there were room.
begun AS MATERIALIZED (
    SELECT key, count(*) AS tasks, bool_and(expired) AS expired FROM chosen GROUP BY key),
full_up AS MATERIALIZED (
    SELECT count(*) >= $3::bigint AS yes, count(*) FILTER (WHERE NOT far) >= $7::bigint AS local
    FROM chosen WHERE NOT expired),
left_over AS MATERIALIZED (
    SELECT r.key, r.far, r.id, r.pri - r.running - coalesce(b.tasks, 0) AS allowance,
        row_number() OVER (PARTITION BY r.far ORDER BY r.pri - r.running - coalesce(b.tasks, 0) DESC, r.id) AS nth
    FROM room r CROSS JOIN full_up f LEFT JOIN begun b ON b.key = r.key
    WHERE b.key IS NULL OR (NOT b.expired AND (f.yes OR (f.local AND NOT r.far)) AND r.pri - r.running >= b.tasks)),
claimed AS (
    UPDATE {table} t SET plan = g.plan, pid = g.pid, stop = NULL,
        state = (CASE WHEN g.pid IS NULL THEN 'TAKE' ELSE 'WORK' END)::{state},
        start = CASE WHEN g.pid IS NOT NULL THEN n.at END
    FROM given g, now n WHERE t.id = g.id
    RETURNING {columns}, g.key, g.expired, {sync})
SELECT c.*, encode(timestamptz_send(n.at), 'hex'), NULL, NULL FROM now n JOIN claimed c ON true
UNION ALL
SELECT {nothing} NULL, encode(timestamptz_send(n.at), 'hex'),
    encode(timestamptz_send((SELECT plan FROM {table} WHERE state = 'PLAN' AND plan > n.at ORDER BY plan LIMIT 1)), 'hex'),
    (SELECT json_agg(json_build_object('key', l.key, 'allowance', l.allowance, 'id', l.id, 'far', l.far))::text
        FROM left_over l WHERE l.nth <= 2001)
FROM now n
