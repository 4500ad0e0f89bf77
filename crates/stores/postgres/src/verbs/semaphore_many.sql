-- Commands of many callers in one call. If a semaphore has room for all tasks and none waits, priorities need not be compared:
-- such semaphores are changed together. The others are changed one after the other. Plans are made once, perhaps for empty
-- tables, so settings make them use the indexes.

-- Those of these semaphores that have room for all these new tasks while no task waits. _of has the semaphore of each task.
CREATE OR REPLACE FUNCTION taskyard.semaphore_uncontended(_tasks bigint[], _of integer[]) RETURNS integer[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(SELECT g.id FROM (
            SELECT w.id, count(*) AS wanted, count(DISTINCT w.task) AS tasks, bool_or(p.there) AS known
            FROM unnest(_tasks, _of) AS w(task, id)
            LEFT JOIN LATERAL (SELECT true AS there FROM taskyard.semaphore_task p
                WHERE p.semaphore_id = w.id AND p.task_id = w.task OFFSET 0) p ON true
            GROUP BY w.id) g
        CROSS JOIN LATERAL (SELECT s.active, s.min_hold FROM taskyard.semaphore s WHERE s.id = g.id OFFSET 0) s
        CROSS JOIN LATERAL (SELECT t.acquired, t.revoking, t.declines, taskyard.semaphore_from_rank(t) AS from_rank,
                taskyard.semaphore_from_seq(t) AS from_seq
            FROM taskyard.semaphore_state t WHERE t.semaphore_id = g.id OFFSET 0) t
        WHERE g.known IS NULL AND g.tasks = g.wanted AND s.min_hold = 0 AND t.revoking = 0 AND NOT t.declines
            AND t.acquired + g.wanted <= s.active
            AND NOT EXISTS (SELECT 1 FROM taskyard.semaphore_task p
                WHERE p.semaphore_id = g.id AND p.status = 'WAIT'
                    AND (p.rank, p.seq) >= (t.from_rank, t.from_seq)));
END $$;

-- _sizes has the number of tasks of each command, the other arrays have the tasks of all. Returns the rows of
-- semaphore_enqueue, with the place of the command before them.
CREATE OR REPLACE FUNCTION taskyard.semaphore_enqueue_all(_keys text[], _now bigint, _sizes integer[],
    _tasks bigint[], _priorities float8[])
RETURNS TABLE (item integer, code smallint, deadline bigint, news boolean, task bigint, status text, priority float8,
    enqueued bigint, moment bigint, grant_no bigint, granted bigint, lease_until bigint, pinned boolean)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    _ids integer[];
    _items integer[];
    _of integer[];
    _simple integer[];
    _first integer := 1;
BEGIN
    _now := coalesce(_now, taskyard.clock());
    PERFORM taskyard.semaphore_lock_all(_keys);
    _ids := ARRAY(SELECT s.id FROM unnest(_keys) WITH ORDINALITY AS k(key, n)
        LEFT JOIN LATERAL (SELECT s.id FROM taskyard.semaphore s WHERE s.key = k.key OFFSET 0) s ON true
        ORDER BY k.n);
    SELECT array_agg(s.n::integer ORDER BY s.n), array_agg(_ids[s.n] ORDER BY s.n) INTO _items, _of
        FROM unnest(_sizes) WITH ORDINALITY AS s(size, n) CROSS JOIN generate_series(1, s.size);
    -- Decided after the lock.
    _simple := taskyard.semaphore_uncontended(_tasks, _of);
    IF _simple <> '{}' THEN
        RETURN QUERY WITH wish AS MATERIALIZED (
            SELECT w.task, w.priority, w.item, w.id, w.n,
                row_number() OVER (PARTITION BY w.id ORDER BY w.item, w.priority DESC, w.n) AS place
            FROM unnest(_tasks, _priorities, _items, _of) WITH ORDINALITY AS w(task, priority, item, id, n)
            WHERE w.id = ANY (_simple)),
        let_in AS MATERIALIZED (
            SELECT w.*, t.grant_seq + w.place AS grant_no, nextval('taskyard.semaphore_seq') AS seq,
                taskyard.later(_now, s.lease) AS lease_until, taskyard.later(_now, s.ack_timeout) AS ack_by
            FROM (SELECT * FROM wish ORDER BY wish.n) w
            CROSS JOIN LATERAL (SELECT s.lease, s.ack_timeout FROM taskyard.semaphore s WHERE s.id = w.id OFFSET 0) s
            CROSS JOIN LATERAL (SELECT t.grant_seq FROM taskyard.semaphore_state t
                WHERE t.semaphore_id = w.id OFFSET 0) t),
        added AS (
            INSERT INTO taskyard.semaphore_task (semaphore_id, task_id, priority, seq, status, enqueued,
                grant_no, granted, lease_until, ack_by)
            SELECT l.id, l.task, l.priority, l.seq, 'ACQUIRED', _now, l.grant_no, _now, l.lease_until, l.ack_by
            FROM let_in l),
        told AS (
            INSERT INTO taskyard.semaphore_event (semaphore_id, task_id, grant_no, kind, next_at)
            SELECT l.id, l.task, l.grant_no, 'acquired', _now FROM let_in l ORDER BY l.id, l.grant_no),
        counted AS (
            UPDATE taskyard.semaphore_state t
            SET acquired = t.acquired + c.count, grant_seq = t.grant_seq + c.count,
                -- No task waits, which is known now.
                rest_rank = 'infinity', rest_seq = 0, ahead = 0, head_rank = NULL, head_seq = NULL,
                tail_rank = CASE WHEN (c.rank, c.seq) > (t.tail_rank, t.tail_seq) THEN c.rank ELSE t.tail_rank END,
                tail_seq = CASE WHEN (c.rank, c.seq) > (t.tail_rank, t.tail_seq) THEN c.seq ELSE t.tail_seq END
            FROM (SELECT l.id, count(*)::integer AS count,
                    -(array_agg(l.priority ORDER BY l.priority, l.seq DESC))[1] AS rank,
                    (array_agg(l.seq ORDER BY l.priority, l.seq DESC))[1] AS seq
                FROM let_in l GROUP BY l.id) c
            WHERE t.semaphore_id = c.id)
        SELECT l.item, NULL::smallint, taskyard.timer(least(l.lease_until, l.ack_by)), NULL::boolean, l.task,
            'acquired'::text, l.priority, _now, NULL::bigint, l.grant_no, _now, l.lease_until, false
        FROM let_in l ORDER BY l.n;
    END IF;
    FOR _item IN 1 .. cardinality(_keys) LOOP
        IF _ids[_item] = ANY (_simple) OR _sizes[_item] = 0 AND _ids[_item] IS NOT NULL THEN
            RETURN QUERY SELECT _item, 0::smallint, NULL::bigint, _sizes[_item] > 0, NULL::bigint, NULL::text,
                NULL::float8, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::boolean;
        ELSE
            RETURN QUERY SELECT _item, e.* FROM taskyard.semaphore_enqueue(_keys[_item], _now,
                _tasks[_first:_first + _sizes[_item] - 1], _priorities[_first:_first + _sizes[_item] - 1]) e;
        END IF;
        _first := _first + _sizes[_item];
    END LOOP;
END $$;

-- The same for releases. Returns the rows of semaphore_finish, with the place of the command before them.
CREATE OR REPLACE FUNCTION taskyard.semaphore_release_all(_keys text[], _now bigint, _sizes integer[],
    _tasks bigint[], _grants bigint[])
RETURNS TABLE (item integer, code smallint, deadline bigint, news boolean, outcomes smallint[])
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    _ids integer[];
    _of integer[];
    _simple integer[];
    _found smallint[];
    _first integer := 1;
    _last integer;
BEGIN
    _now := coalesce(_now, taskyard.clock());
    PERFORM taskyard.semaphore_lock_all(_keys);
    _ids := ARRAY(SELECT s.id FROM unnest(_keys) WITH ORDINALITY AS k(key, n)
        LEFT JOIN LATERAL (SELECT s.id FROM taskyard.semaphore s WHERE s.key = k.key OFFSET 0) s ON true
        ORDER BY k.n);
    SELECT array_agg(_ids[s.n] ORDER BY s.n) INTO _of
        FROM unnest(_sizes) WITH ORDINALITY AS s(size, n) CROSS JOIN generate_series(1, s.size);
    _simple := ARRAY(SELECT g.id FROM (
            SELECT w.id, count(*) AS wanted, count(DISTINCT w.task) AS tasks
            FROM unnest(_tasks, _of) AS w(task, id) GROUP BY w.id) g
        CROSS JOIN LATERAL (SELECT s.min_hold FROM taskyard.semaphore s WHERE s.id = g.id OFFSET 0) s
        CROSS JOIN LATERAL (SELECT t.revoking, t.declines, taskyard.semaphore_from_rank(t) AS from_rank,
                taskyard.semaphore_from_seq(t) AS from_seq
            FROM taskyard.semaphore_state t WHERE t.semaphore_id = g.id OFFSET 0) t
        WHERE g.tasks = g.wanted AND s.min_hold = 0 AND t.revoking = 0 AND NOT t.declines
            AND NOT EXISTS (SELECT 1 FROM taskyard.semaphore_task p
                WHERE p.semaphore_id = g.id AND p.status = 'WAIT'
                    AND (p.rank, p.seq) >= (t.from_rank, t.from_seq)));
    IF _simple <> '{}' THEN
        WITH named AS MATERIALIZED (
            SELECT w.id, w.task, w.n, p.place, p.status, p.grant_no,
                CASE WHEN p.place IS NULL THEN 2
                    WHEN w.wanted IS NOT NULL AND w.wanted IS DISTINCT FROM p.grant_no THEN 1
                    ELSE 0 END::smallint AS outcome
            FROM unnest(_tasks, _grants, _of) WITH ORDINALITY AS w(task, wanted, id, n)
            LEFT JOIN LATERAL (SELECT p.ctid AS place, p.status, p.grant_no FROM taskyard.semaphore_task p
                WHERE p.semaphore_id = w.id AND p.task_id = w.task OFFSET 0) p ON true
            WHERE w.id = ANY (_simple)),
        gone AS (
            DELETE FROM taskyard.semaphore_task p USING named n WHERE p.ctid = n.place AND n.outcome = 0),
        silent AS (
            DELETE FROM taskyard.semaphore_event e USING named n
            WHERE e.semaphore_id = n.id AND e.task_id = n.task AND e.grant_no = n.grant_no AND n.outcome = 0),
        counted AS (
            UPDATE taskyard.semaphore_state t SET acquired = t.acquired - c.count, rest_rank = 'infinity', rest_seq = 0,
                ahead = 0, head_rank = NULL, head_seq = NULL
            FROM (SELECT n.id, count(*)::integer AS count FROM named n
                WHERE n.outcome = 0 AND n.status = 'ACQUIRED' GROUP BY n.id) c
            WHERE t.semaphore_id = c.id)
        SELECT array_agg(n.outcome ORDER BY a.n) INTO _found
            FROM generate_series(1, cardinality(_tasks)) AS a(n) LEFT JOIN named n ON n.n = a.n;
    END IF;
    FOR _item IN 1 .. cardinality(_keys) LOOP
        _last := _first + _sizes[_item] - 1;
        IF _ids[_item] = ANY (_simple) THEN
            RETURN QUERY SELECT _item, 0::smallint, NULL::bigint, false, _found[_first:_last];
        ELSE
            RETURN QUERY SELECT _item, f.* FROM taskyard.semaphore_finish(_keys[_item], _now, _tasks[_first:_last],
                _grants[_first:_last], array_fill(0::smallint, ARRAY[_sizes[_item]]),
                array_fill(NULL::bigint, ARRAY[_sizes[_item]])) f;
        END IF;
        _first := _last + 1;
    END LOOP;
END $$;
