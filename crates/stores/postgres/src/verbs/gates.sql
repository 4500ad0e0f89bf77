-- Tubes with a semaphore. Every operation on such a tube locks the state row of its semaphore first, so that no other one
-- changes its tasks at the same time.
--
-- A task is in the semaphore exactly while it is ready, taken, or would be ready with a grant (state 6).

-- The number of a tube's task in its semaphore: negative, so that it differs from the numbers of callers.
CREATE OR REPLACE FUNCTION taskyard.gated(_tube integer, _id bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT (-9223372036854775808)::bigint + (_tube::bigint << 43) + _id
$$;

-- The inverse: the number of the tube, and the id.
CREATE OR REPLACE FUNCTION taskyard.gated_tube(_task bigint) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN _task < 0 THEN ((_task & 9223372036854775807) >> 43)::integer END
$$;

CREATE OR REPLACE FUNCTION taskyard.gated_id(_task bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT _task & 8796093022207
$$;

CREATE OR REPLACE FUNCTION taskyard.lock_gate(_semaphore integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM taskyard.semaphore_state s WHERE s.semaphore_id = _semaphore FOR UPDATE;
END $$;

-- Locks the semaphores of these tubes, in the order of their numbers.
CREATE OR REPLACE FUNCTION taskyard.lock_gates(_tubes integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM taskyard.tube u WHERE u.number = ANY (_tubes) AND u.semaphore IS NOT NULL) THEN
        PERFORM 1 FROM taskyard.semaphore_state s
            WHERE s.semaphore_id = ANY (ARRAY(SELECT u.semaphore FROM taskyard.tube u
                WHERE u.number = ANY (_tubes) AND u.semaphore IS NOT NULL))
            ORDER BY s.semaphore_id FOR UPDATE;
    END IF;
END $$;

-- Locks the semaphores of the tasks that a session holds. To be called before the session's row is locked, because a take
-- locks in that order.
CREATE OR REPLACE FUNCTION taskyard.lock_gates_of(_session bytea) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM taskyard.lock_gates(ARRAY(
        SELECT DISTINCT t.tube FROM taskyard.task t WHERE t.session = _session));
END $$;

-- What semaphores do because of a call (tasks become ready in this or another tube, events are written, deadlines set) is
-- noted until the transaction ends and read by its last call, so that the server can wake waiting callers. A NOTIFY from here
-- would serialize all commits of the database.
CREATE OR REPLACE FUNCTION taskyard.note_ready(_tube text, _count bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- The name of a tube has neither a slash nor a colon.
    PERFORM set_config('taskyard.ready',
        concat(current_setting('taskyard.ready', true), '/', _count, ':', _tube), true);
END $$;

CREATE OR REPLACE FUNCTION taskyard.note_semaphore(_news boolean, _deadline bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF _news THEN
        PERFORM set_config('taskyard.news', 'yes', true);
    END IF;
    IF _deadline IS NOT NULL THEN
        PERFORM set_config('taskyard.deadline', least(_deadline,
            nullif(current_setting('taskyard.deadline', true), '')::bigint)::text, true);
    END IF;
END $$;

-- What was noted in this transaction: new events, the earliest deadline, and how many tasks became ready where.
CREATE OR REPLACE FUNCTION taskyard.moved(OUT news boolean, OUT deadline bigint, OUT tubes text[], OUT counts bigint[])
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(current_setting('taskyard.news', true), '') <> '',
        nullif(current_setting('taskyard.deadline', true), '')::bigint,
        array_agg(split_part(r.noted, ':', 2)), array_agg(split_part(r.noted, ':', 1)::bigint)
    FROM unnest(string_to_array(substr(current_setting('taskyard.ready', true), 2), '/')) AS r(noted)
$$;

-- Makes tasks ready that got a grant (_in), or not ready that lost it.
CREATE OR REPLACE FUNCTION taskyard.move_gated(_tasks bigint[], _in boolean) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _numbers integer[];
    _ready bigint[];
    _keyed integer[];
    _keys text[];
    _number integer;
BEGIN
    WITH moved AS (
        UPDATE taskyard.task t SET state = CASE WHEN _in THEN 0 ELSE 6 END
        FROM unnest(_tasks) AS g(task)
        CROSS JOIN LATERAL (SELECT k.ctid AS place, k.state FROM taskyard.task k
            WHERE k.tube = taskyard.gated_tube(g.task) AND k.id = taskyard.gated_id(g.task) OFFSET 0) k
        WHERE t.ctid = k.place AND CASE WHEN _in THEN k.state = 6 ELSE k.state IN (0, 5) END
        RETURNING t.tube, t.subqueue, k.state AS before),
    counted AS (
        INSERT INTO taskyard.count (tube, ready, passed, delayed)
        SELECT m.tube, count(*) FILTER (WHERE _in) - count(*) FILTER (WHERE m.before = 0),
            -count(*) FILTER (WHERE m.before = 5),
            count(*) FILTER (WHERE NOT _in) - count(*) FILTER (WHERE m.before = 6)
        FROM moved m GROUP BY m.tube RETURNING count.tube, count.ready),
    keyed AS (SELECT DISTINCT m.tube, m.subqueue AS key FROM moved m WHERE m.subqueue IS NOT NULL)
    SELECT (SELECT array_agg(c.tube ORDER BY c.tube) FROM counted c),
        (SELECT array_agg(c.ready ORDER BY c.tube) FROM counted c),
        (SELECT array_agg(k.tube ORDER BY k.tube, k.key) FROM keyed k),
        (SELECT array_agg(k.key ORDER BY k.tube, k.key) FROM keyed k)
        INTO _numbers, _ready, _keyed, _keys;
    -- Find the new heads of their sub-queues. Other transactions cannot change these: that needs the lock of the semaphore.
    FOR _number IN SELECT DISTINCT k.tube FROM unnest(_keyed) AS k(tube) ORDER BY 1 LOOP
        PERFORM taskyard.set_subqueue_heads(_number, ARRAY(
            SELECT k.key FROM unnest(_keyed, _keys) AS k(tube, key) WHERE k.tube = _number));
    END LOOP;
    IF _in THEN
        PERFORM taskyard.note_ready(u.name, c.ready) FROM unnest(_numbers, _ready) AS c(tube, ready)
            JOIN taskyard.tube u ON u.number = c.tube;
    END IF;
END $$;

-- Removes tasks of a tube from its semaphore. Returns the state after that.
CREATE OR REPLACE FUNCTION taskyard.gate_remove(_n taskyard.semaphore_state, _tasks bigint[])
RETURNS taskyard.semaphore_state LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _ahead bigint;
BEGIN
    DELETE FROM taskyard.semaphore_event e USING unnest(_tasks) AS g(task)
        WHERE e.semaphore_id = _n.semaphore_id AND e.task_id = g.task;
    WITH gone AS (
        DELETE FROM taskyard.semaphore_task p USING unnest(_tasks) AS g(task)
        WHERE p.semaphore_id = _n.semaphore_id AND p.task_id = g.task
        RETURNING p.status, p.rank, p.seq)
    SELECT _n.acquired - count(*) FILTER (WHERE g.status = 'ACQUIRED'),
        _n.revoking - count(*) FILTER (WHERE g.status = 'TRY_RELEASE'),
        count(*) FILTER (WHERE g.status = 'WAIT' AND (g.rank, g.seq) < (_n.rest_rank, _n.rest_seq))
        INTO _n.acquired, _n.revoking, _ahead FROM gone g;
    RETURN taskyard.semaphore_removed(_n, _ahead);
END $$;

-- Releases the grants of those of these tasks that were asked to release and are not taken any more; _back is when they wait
-- again, NULL at once. Returns the state after that; _asked is NULL if there are none.
CREATE OR REPLACE FUNCTION taskyard.gate_release_asked(INOUT _n taskyard.semaphore_state, _tasks bigint[],
    _back bigint, OUT _asked bigint[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _rank float8;
    _seq bigint;
BEGIN
    SELECT array_agg(p.task_id) INTO _asked FROM unnest(_tasks) AS g(task)
        CROSS JOIN LATERAL (SELECT p.task_id FROM taskyard.semaphore_task p
            WHERE p.semaphore_id = _n.semaphore_id AND p.task_id = g.task AND p.status = 'TRY_RELEASE' OFFSET 0) p;
    IF _asked IS NULL THEN
        RETURN;
    END IF;
    DELETE FROM taskyard.semaphore_event e USING unnest(_asked) AS g(task)
        WHERE e.semaphore_id = _n.semaphore_id AND e.task_id = g.task;
    UPDATE taskyard.semaphore_task p
        SET status = CASE WHEN _back IS NULL THEN 'WAIT' ELSE 'DELAYED' END::taskyard.semaphore_status,
            moment = _back, grant_no = NULL, granted = NULL, lease_until = NULL, ack_by = NULL, pinned = false
        FROM unnest(_asked) AS g(task) WHERE p.semaphore_id = _n.semaphore_id AND p.task_id = g.task;
    IF _back IS NULL THEN
        SELECT p.rank, p.seq INTO _rank, _seq FROM unnest(_asked) AS g(task)
            JOIN taskyard.semaphore_task p ON p.semaphore_id = _n.semaphore_id AND p.task_id = g.task
            ORDER BY p.rank, p.seq LIMIT 1;
        _n := taskyard.semaphore_added(_n, _rank, _seq, cardinality(_asked));
    END IF;
    _n.revoking := _n.revoking - cardinality(_asked);
END $$;

-- Adds tasks of a tube to its semaphore, in this order, as far as they are not in it yet; a task that a put has replaced gets its new
-- priority. Returns the state after that.
CREATE OR REPLACE FUNCTION taskyard.gate_add(_n taskyard.semaphore_state, _tube integer, _tasks bigint[], _now bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _came bigint;
    _rank float8;
    _seq bigint;
    _worst_rank float8;
    _worst_seq bigint;
BEGIN
    WITH added AS (
        INSERT INTO taskyard.semaphore_task AS p (semaphore_id, task_id, priority, seq, enqueued)
        SELECT _n.semaphore_id, g.task,
            coalesce(k.semaphore_priority, 0 - (k.pri::numeric + 9223372036854775808)::float8),
            nextval('taskyard.semaphore_seq'), _now
        FROM unnest(_tasks) AS g(task)
        CROSS JOIN LATERAL (SELECT k.pri, k.semaphore_priority FROM taskyard.task k
            WHERE k.tube = _tube AND k.id = taskyard.gated_id(g.task) OFFSET 0) k
        ON CONFLICT (semaphore_id, task_id) DO UPDATE SET priority = excluded.priority
            WHERE p.priority <> excluded.priority
        RETURNING p.rank, p.seq, p.status),
    best AS (SELECT k.rank, k.seq FROM added k WHERE k.status = 'WAIT' ORDER BY k.rank, k.seq LIMIT 1),
    worst AS (SELECT k.rank, k.seq FROM added k WHERE k.status = 'ACQUIRED' ORDER BY k.rank DESC, k.seq DESC LIMIT 1)
    SELECT c.count, b.rank, b.seq, w.rank, w.seq INTO _came, _rank, _seq, _worst_rank, _worst_seq
        FROM (SELECT count(*) FROM added k WHERE k.status = 'WAIT') c LEFT JOIN best b ON true
        LEFT JOIN worst w ON true;
    RETURN taskyard.semaphore_holds(taskyard.semaphore_added(_n, _rank, _seq, _came), _worst_rank, _worst_seq);
END $$;

-- After tasks of a tube changed, adds them to its semaphore or removes them there, and grants what became free. The ids are
-- in the order in which they begin to wait. Returns the next deadline of the semaphore that was set.
CREATE OR REPLACE FUNCTION taskyard.update_gate(_t taskyard.tube, _ids bigint[], _now bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    _s taskyard.semaphore;
    _state taskyard.semaphore_state;
    _n taskyard.semaphore_state;
    _stand bigint[];
    _leave bigint[];
    _back bigint;
    _released record;
    _advanced record;
BEGIN
    SELECT s.* INTO _state FROM taskyard.semaphore_state s WHERE s.semaphore_id = _t.semaphore FOR UPDATE;
    SELECT s.* INTO _s FROM taskyard.semaphore s WHERE s.id = _t.semaphore;
    IF _s.id IS NULL THEN
        -- Without its semaphore no task of the tube is ready.
        PERFORM taskyard.move_gated(ARRAY(SELECT taskyard.gated(_t.number, i.id) FROM unnest(_ids) AS i(id)), false);
        RETURN NULL;
    END IF;
    _now := coalesce(_now, taskyard.clock());
    _n := _state;
    SELECT array_agg(taskyard.gated(_t.number, i.id) ORDER BY i.n) FILTER (WHERE k.state IN (0, 5, 6)),
        array_agg(taskyard.gated(_t.number, i.id)) FILTER (WHERE coalesce(k.state, 3) IN (2, 3, 4))
        INTO _stand, _leave
        FROM (SELECT u.id, min(u.n) AS n FROM unnest(_ids) WITH ORDINALITY AS u(id, n) GROUP BY u.id) i
        LEFT JOIN LATERAL (SELECT k.state FROM taskyard.task k
            WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) k ON true;
    IF _leave IS NOT NULL THEN
        _n := taskyard.gate_remove(_n, _leave);
    END IF;
    IF _stand IS NOT NULL THEN
        _back := CASE WHEN _s.cool_down > 0 THEN taskyard.later(_now, _s.cool_down) END;
        _released := taskyard.gate_release_asked(_n, _stand, _back);
        IF _released._asked IS NULL THEN
            _back := NULL;
        END IF;
        _n := taskyard.gate_add(_released._n, _t.number, _stand, _now);
        PERFORM taskyard.move_gated(ARRAY(SELECT g.task FROM unnest(_stand) AS g(task)
            CROSS JOIN LATERAL (SELECT p.status FROM taskyard.semaphore_task p
                WHERE p.semaphore_id = _s.id AND p.task_id = g.task OFFSET 0) p
            WHERE p.status IN ('WAIT', 'DELAYED')), false);
    END IF;
    _advanced := taskyard.semaphore_advance(_s, _state, _n, _now);
    _back := taskyard.timer(least(_back, _advanced._deadline));
    PERFORM taskyard.note_semaphore(_advanced._news, _back);
    RETURN _back;
END $$;

-- Inconsistencies of tubes that have a semaphore; should be empty. A task is ready without a grant, is in the semaphore and
-- should not be, or is deleted and still in the semaphore.
CREATE OR REPLACE VIEW taskyard.gate_audit AS
    SELECT u.name AS tube, k.id, k.state, p.status
    FROM taskyard.tube u
    JOIN taskyard.task k ON k.tube = u.number
    LEFT JOIN taskyard.semaphore_task p
        ON p.semaphore_id = u.semaphore AND p.task_id = taskyard.gated(k.tube, k.id)
    WHERE u.semaphore IS NOT NULL AND NOT CASE
        WHEN k.state IN (0, 5) THEN coalesce(p.status = 'ACQUIRED', false)
        WHEN k.state = 6 THEN coalesce(p.status IN ('WAIT', 'DELAYED'), false)
        WHEN k.state = 1 THEN p.status IS NOT NULL
        ELSE p.status IS NULL
    END
    UNION ALL
    SELECT NULL, taskyard.gated_id(p.task_id), NULL, p.status FROM taskyard.semaphore_task p
    WHERE p.task_id < 0 AND NOT EXISTS (SELECT 1 FROM taskyard.task k
        WHERE k.tube = taskyard.gated_tube(p.task_id) AND k.id = taskyard.gated_id(p.task_id));
