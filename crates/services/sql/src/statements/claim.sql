-- Claims the tasks that may start now, and returns them with their group and whether they have expired. A last row without
-- a task has the time of the database, the next plan and the groups that wait for capacity.
-- $1: groups with sessions or a pause, by key; $2: idle sessions; $3: how many tasks may start; $4: how many more rows of a
-- group to read, because many have expired; $5: the groups to claim, null for all; $6: how many bytes of input may be read;
-- $7: how many tasks may start in this database, without those on remotes.
-- A task that fits the idle session with the same position in its group is assigned to it and runs at once (WORK); the others
-- wait until a session is opened for them (TAKE). A claim of a task on a remote is on disk before it is answered: a crash must
-- not let the task start twice.
WITH RECURSIVE now AS MATERIALIZED (SELECT clock_timestamp() AS at),
-- Looked up by key: a join would compare every group with every other.
busy AS MATERIALIZED (SELECT $1::jsonb AS by_key),
-- The sessions first that have the most left to do.
worker AS MATERIALIZED (
    SELECT w.*, row_number() OVER (PARTITION BY w.key ORDER BY w.done, w.since DESC, w.max, w.pid) AS rank_in_group
    FROM json_to_recordset($2::json) AS w(key uuid, pid integer, max integer, done integer, since timestamptz)),
{groups}
{tasks}
assigned AS MATERIALIZED (
    SELECT c.id, c.plan, c.key, c.expired, w.pid FROM chosen c CROSS JOIN now n
    LEFT JOIN worker w ON w.key = c.key AND w.rank_in_group = c.rank_in_group AND NOT c.expired AND c.max >= w.max
        AND CASE WHEN c.count > 0 AND c.live > '0 sec' THEN w.done < c.count AND n.at < w.since + c.live
            ELSE w.done < c.count OR (c.live > '0 sec' AND n.at < w.since + c.live) END),
{waiting}
claimed AS (
    UPDATE {table} t SET plan = a.plan, pid = a.pid, stop = NULL,
        state = (CASE WHEN a.pid IS NULL THEN 'TAKE' ELSE 'WORK' END)::{state},
        start = CASE WHEN a.pid IS NOT NULL THEN n.at END
    FROM assigned a, now n WHERE t.id = a.id
    RETURNING {columns}, a.key, a.expired, {sync})
SELECT c.*, encode(timestamptz_send(n.at), 'hex'), NULL, NULL FROM now n JOIN claimed c ON true
UNION ALL
SELECT {nothing} NULL, encode(timestamptz_send(n.at), 'hex'),
    encode(timestamptz_send((SELECT plan FROM {table} WHERE state = 'PLAN' AND plan > n.at ORDER BY plan LIMIT 1)), 'hex'),
    (SELECT json_agg(json_build_object('key', w.key, 'allowance', w.allowance, 'id', w.id, 'remote', w.is_remote))::text
        FROM waiting w WHERE w.nth <= 2001)
FROM now n
