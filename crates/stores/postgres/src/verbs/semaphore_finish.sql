-- Releases, yields, declines and extensions of grants by their holders.

-- Takes the grant of a task away. It waits again at once or, with _back, from that moment on. Returns the state after that.
CREATE OR REPLACE FUNCTION taskyard.semaphore_requeue(_n taskyard.semaphore_state, _task bigint, _back bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _rank float8;
    _seq bigint;
BEGIN
    UPDATE taskyard.semaphore_task t
        SET status = CASE WHEN _back IS NULL THEN 'WAIT' ELSE 'DELAYED' END::taskyard.semaphore_status,
            moment = _back, grant_no = NULL, granted = NULL, lease_until = NULL, ack_by = NULL, pinned = false
        WHERE t.semaphore_id = _n.semaphore_id AND t.task_id = _task
        RETURNING CASE WHEN _back IS NULL THEN t.rank END, t.seq INTO _rank, _seq;
    RETURN taskyard.semaphore_added(_n, _rank, _seq, 1);
END $$;

-- Prolongs a grant. Returns whether an event that had to wait for the acknowledgement of the grant may be handed out now.
CREATE OR REPLACE FUNCTION taskyard.semaphore_extend(_id integer, _task bigint, _grant bigint, _until bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _freed boolean;
BEGIN
    -- A holder that prolongs a grant knows of it.
    DELETE FROM taskyard.semaphore_event e
        WHERE e.semaphore_id = _id AND e.task_id = _task AND e.grant_no = _grant AND e.kind = 'acquired';
    _freed := FOUND AND EXISTS (SELECT 1 FROM taskyard.semaphore_event e
        WHERE e.semaphore_id = _id AND e.task_id = _task AND e.grant_no = _grant);
    UPDATE taskyard.semaphore_task t SET lease_until = _until, ack_by = NULL
        WHERE t.semaphore_id = _id AND t.task_id = _task;
    RETURN _freed;
END $$;

-- The outcome of one item of semaphore_finish: 0 done, 1 stale, 2 missing, 3 not asked to release. _status and _held are
-- NULL for a task that is not in the semaphore.
CREATE OR REPLACE FUNCTION taskyard.semaphore_finish_outcome(_how smallint, _grant bigint,
    _status taskyard.semaphore_status, _held bigint, _pinned boolean)
RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT (CASE
        WHEN _status IS NULL THEN 2
        WHEN _grant IS NOT NULL AND _grant IS DISTINCT FROM _held THEN 1
        WHEN _how >= 2 AND _status NOT IN ('ACQUIRED', 'TRY_RELEASE') THEN 1
        -- There is no request to decline. To decline twice is the same as once.
        WHEN _how = 2 AND _status = 'ACQUIRED' AND NOT _pinned THEN 3
        ELSE 0
    END)::smallint
$$;

-- _how is 0 release, 1 yield, 2 decline, 3 extend by _spans. Codes: 0 done, 1 no such semaphore. Outcomes: 0 done, 1
-- stale, 2 missing, 3 not asked.
CREATE OR REPLACE FUNCTION taskyard.semaphore_finish(_key text, _now bigint, _tasks bigint[],
    _grants bigint[], _how smallint[], _spans bigint[])
RETURNS TABLE (code smallint, deadline bigint, news boolean, outcomes smallint[])
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    _s taskyard.semaphore;
    _state taskyard.semaphore_state;
    _n taskyard.semaphore_state;
    _row record;
    _at bigint;
    _earliest bigint;
    _freed boolean := false;
    _advanced record;
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
    outcomes := '{}';
    IF cardinality(_tasks) > 1 THEN
        -- An acknowledgement of several events locks them in this order as well.
        PERFORM 1 FROM taskyard.semaphore_event e
            WHERE e.semaphore_id = _s.id AND e.task_id = ANY (_tasks) ORDER BY e.id FOR UPDATE;
    END IF;
    _n := _state;
    FOR _item IN 1 .. cardinality(_tasks) LOOP
        SELECT t.status, t.grant_no, t.rank, t.seq, t.pinned INTO _row FROM taskyard.semaphore_task t
            WHERE t.semaphore_id = _s.id AND t.task_id = _tasks[_item];
        outcomes[_item] := taskyard.semaphore_finish_outcome(
            _how[_item], _grants[_item], _row.status, _row.grant_no, _row.pinned);
        -- A yield of a waiting task, and a second decline, change nothing.
        CONTINUE WHEN outcomes[_item] <> 0 OR _how[_item] = 1 AND _row.grant_no IS NULL
            OR _how[_item] = 2 AND _row.status = 'ACQUIRED';
        IF _row.grant_no IS NOT NULL AND _how[_item] < 3 THEN
            PERFORM taskyard.semaphore_delete_events(_s.id, _tasks[_item], _row.grant_no);
            _n.acquired := _n.acquired - (_row.status = 'ACQUIRED')::integer;
            _n.revoking := _n.revoking - (_row.status = 'TRY_RELEASE')::integer;
        END IF;
        IF _how[_item] = 0 THEN
            DELETE FROM taskyard.semaphore_task t WHERE t.semaphore_id = _s.id AND t.task_id = _tasks[_item];
            IF _row.status = 'WAIT' AND (_row.rank, _row.seq) < (_n.rest_rank, _n.rest_seq) THEN
                _n := taskyard.semaphore_removed(_n, 1);
            END IF;
        ELSIF _how[_item] = 1 THEN
            _at := CASE WHEN _s.cool_down > 0 THEN taskyard.later(_now, _s.cool_down) END;
            _n := taskyard.semaphore_requeue(_n, _tasks[_item], _at);
        ELSIF _how[_item] = 2 THEN
            UPDATE taskyard.semaphore_task t SET status = 'ACQUIRED', moment = NULL, ack_by = NULL, pinned = true
                WHERE t.semaphore_id = _s.id AND t.task_id = _tasks[_item];
            _n.acquired := _n.acquired + 1;
            _n.declines := true;
        ELSE
            _at := taskyard.timer(taskyard.later(_now, _spans[_item]));
            _freed := taskyard.semaphore_extend(_s.id, _tasks[_item], _row.grant_no, _at) OR _freed;
        END IF;
        _earliest := least(_earliest, CASE WHEN _how[_item] IN (1, 3) THEN _at END);
    END LOOP;
    _advanced := taskyard.semaphore_advance(_s, _state, _n, _now);
    code := 0;
    deadline := taskyard.timer(least(_earliest, _advanced._deadline));
    news := _advanced._news OR _freed;
    RETURN NEXT;
END $$;
