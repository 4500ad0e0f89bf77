-- Enqueues tasks and shows them. The first row has the code (1: no such semaphore); the others have a NULL there and show
-- tasks. They are read one by one (LATERAL with OFFSET 0): if the planner believes that the table is almost empty, a plain join
-- reads all tasks that the semaphore ever had and whose rows could not be removed yet.

CREATE OR REPLACE FUNCTION taskyard.semaphore_look(_key text, _tasks bigint[])
RETURNS TABLE (code smallint, deadline bigint, news boolean, task bigint, status text,
    priority float8, enqueued bigint, moment bigint, grant_no bigint, granted bigint,
    lease_until bigint, pinned boolean)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    _id integer;
BEGIN
    SELECT s.id INTO _id FROM taskyard.semaphore s WHERE s.key = _key;
    code := CASE WHEN _id IS NULL THEN 1 ELSE 0 END;
    news := false;
    RETURN NEXT;
    RETURN QUERY SELECT NULL::smallint, NULL::bigint, NULL::boolean, t.task_id, lower(t.status::text),
        t.priority, t.enqueued, t.moment, t.grant_no, t.granted, t.lease_until, t.pinned
        FROM unnest(_tasks) WITH ORDINALITY w(task, n)
        CROSS JOIN LATERAL (SELECT k.* FROM taskyard.semaphore_task k
            WHERE k.semaphore_id = _id AND k.task_id = w.task OFFSET 0) t
        ORDER BY w.n;
END $$;

-- Enqueues tasks, or changes their priorities. No task may be named twice.
CREATE OR REPLACE FUNCTION taskyard.semaphore_enqueue(_key text, _now bigint, _tasks bigint[],
    _priorities float8[])
RETURNS TABLE (code smallint, deadline bigint, news boolean, task bigint, status text,
    priority float8, enqueued bigint, moment bigint, grant_no bigint, granted bigint,
    lease_until bigint, pinned boolean)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    _s taskyard.semaphore;
    _state taskyard.semaphore_state;
    _n taskyard.semaphore_state;
    _advanced record;
    _came bigint;
    _rank float8;
    _seq bigint;
    _worst_rank float8;
    _worst_seq bigint;
BEGIN
    _now := coalesce(_now, taskyard.clock());
    SELECT t.* INTO _state FROM taskyard.semaphore_state t WHERE t.semaphore_id =
        (SELECT s.id FROM taskyard.semaphore s WHERE s.key = _key) FOR UPDATE;
    -- Read after the lock: it may have changed while this waited.
    SELECT s.* INTO _s FROM taskyard.semaphore s WHERE s.id = _state.semaphore_id;
    IF _s.id IS NULL THEN
        code := 1;
        RETURN NEXT;
        RETURN;
    END IF;
    WITH stands AS (
        INSERT INTO taskyard.semaphore_task AS t (semaphore_id, task_id, priority, seq, enqueued)
        SELECT _s.id, w.task, w.priority, nextval('taskyard.semaphore_seq'), _now
        FROM unnest(_tasks, _priorities) w(task, priority)
        ON CONFLICT (semaphore_id, task_id) DO UPDATE SET priority = excluded.priority
            WHERE t.priority <> excluded.priority
        RETURNING t.rank, t.seq, t.status),
    best AS (SELECT k.rank, k.seq FROM stands k WHERE k.status = 'WAIT' ORDER BY k.rank, k.seq LIMIT 1),
    worst AS (SELECT k.rank, k.seq FROM stands k WHERE k.status = 'ACQUIRED' ORDER BY k.rank DESC, k.seq DESC LIMIT 1)
    SELECT c.count, b.rank, b.seq, w.rank, w.seq INTO _came, _rank, _seq, _worst_rank, _worst_seq
        FROM (SELECT count(*) FROM stands k WHERE k.status = 'WAIT') c LEFT JOIN best b ON true
        LEFT JOIN worst w ON true;
    _n := taskyard.semaphore_holds(taskyard.semaphore_added(_state, _rank, _seq, _came), _worst_rank, _worst_seq);
    _advanced := taskyard.semaphore_advance(_s, _state, _n, _now);
    code := 0;
    deadline := _advanced._deadline;
    news := _advanced._news;
    RETURN NEXT;
    RETURN QUERY SELECT NULL::smallint, NULL::bigint, NULL::boolean, t.task_id, lower(t.status::text),
        t.priority, t.enqueued, t.moment, t.grant_no, t.granted, t.lease_until, t.pinned
        FROM unnest(_tasks) WITH ORDINALITY w(task, n)
        CROSS JOIN LATERAL (SELECT k.* FROM taskyard.semaphore_task k
            WHERE k.semaphore_id = _s.id AND k.task_id = w.task OFFSET 0) t
        ORDER BY w.n;
END $$;
