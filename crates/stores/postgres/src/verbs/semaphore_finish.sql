-- How grants end or go on by the word of their holders.

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
    _deadline bigint;
    _news boolean := false;
    _row record;
    _holds boolean;
    _acquired integer;
    _revoking integer;
    _until bigint;
    _back bigint;
    _earliest bigint;
    _freed boolean := false;
    _n taskyard.semaphore_state;
    _rank float8;
    _seq bigint;
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
        -- An acknowledgement of several of them locks them in this order as well.
        PERFORM 1 FROM taskyard.semaphore_event e
            WHERE e.semaphore_id = _s.id AND e.task_id = ANY (_tasks) ORDER BY e.id FOR UPDATE;
    END IF;
    _acquired := _state.acquired;
    _revoking := _state.revoking;
    _n := _state;
    FOR _place IN 1 .. cardinality(_tasks) LOOP
        SELECT t.status, t.grant_no, t.rank, t.seq, t.pinned INTO _row FROM taskyard.semaphore_task t
            WHERE t.semaphore_id = _s.id AND t.task_id = _tasks[_place];
        IF NOT FOUND THEN
            outcomes := outcomes || 2::smallint;
            CONTINUE;
        END IF;
        _holds := _row.status IN ('ACQUIRED', 'TRY_RELEASE');
        IF (_grants[_place] IS NOT NULL AND _grants[_place] IS DISTINCT FROM _row.grant_no)
            OR (NOT _holds AND _how[_place] >= 2)
        THEN
            outcomes := outcomes || 1::smallint;
            CONTINUE;
        END IF;
        IF _how[_place] = 2 AND _row.status = 'ACQUIRED' THEN
            -- Nothing to decline. Twice is the same as once.
            outcomes := outcomes || CASE WHEN _row.pinned THEN 0 ELSE 3 END::smallint;
            CONTINUE;
        END IF;
        outcomes := outcomes || 0::smallint;
        CONTINUE WHEN NOT _holds AND _how[_place] = 1;
        IF _holds AND _how[_place] < 3 THEN
            PERFORM taskyard.semaphore_forget(_s.id, _tasks[_place], _row.grant_no);
            IF _row.status = 'ACQUIRED' THEN
                _acquired := _acquired - 1;
            ELSE
                _revoking := _revoking - 1;
            END IF;
        END IF;
        IF _how[_place] = 0 THEN
            DELETE FROM taskyard.semaphore_task t
                WHERE t.semaphore_id = _s.id AND t.task_id = _tasks[_place];
            IF _row.status = 'WAIT' AND (_row.rank, _row.seq) < (_n.rest_rank, _n.rest_seq) THEN
                _n := taskyard.semaphore_left(_n, 1);
            END IF;
        ELSIF _how[_place] = 1 THEN
            _back := CASE WHEN _s.cool_down > 0 THEN taskyard.later(_now, _s.cool_down) END;
            UPDATE taskyard.semaphore_task t
                SET status = CASE WHEN _back IS NULL THEN 'WAIT' ELSE 'DELAYED' END::taskyard.semaphore_status,
                    moment = _back, grant_no = NULL, granted = NULL, lease_until = NULL, ack_by = NULL,
                    pinned = false
                WHERE t.semaphore_id = _s.id AND t.task_id = _tasks[_place]
                RETURNING CASE WHEN _back IS NULL THEN t.rank END, t.seq INTO _rank, _seq;
            _n := taskyard.semaphore_came(_n, _rank, _seq, 1);
            _earliest := least(_earliest, _back);
        ELSIF _how[_place] = 2 THEN
            UPDATE taskyard.semaphore_task t
                SET status = 'ACQUIRED', moment = NULL, ack_by = NULL, pinned = true
                WHERE t.semaphore_id = _s.id AND t.task_id = _tasks[_place];
            _acquired := _acquired + 1;
            _n.declines := true;
        ELSE
            -- Who prolongs a grant knows of it.
            DELETE FROM taskyard.semaphore_event e
                WHERE e.semaphore_id = _s.id AND e.task_id = _tasks[_place]
                    AND e.grant_no = _row.grant_no AND e.kind = 'acquired';
            -- A request that had to wait for it may be handed out now.
            _freed := _freed OR (FOUND AND EXISTS (SELECT 1 FROM taskyard.semaphore_event e
                WHERE e.semaphore_id = _s.id AND e.task_id = _tasks[_place]
                    AND e.grant_no = _row.grant_no));
            _until := taskyard.timer(taskyard.later(_now, _spans[_place]));
            UPDATE taskyard.semaphore_task t SET lease_until = _until, ack_by = NULL
                WHERE t.semaphore_id = _s.id AND t.task_id = _tasks[_place];
            _earliest := least(_earliest, _until);
        END IF;
    END LOOP;
    SELECT d._deadline, d._news INTO _deadline, _news
        FROM taskyard.semaphore_settle(_s, _state, _n, _acquired, _revoking, _now) d;
    code := 0;
    deadline := taskyard.timer(least(_earliest, _deadline));
    news := _news OR _freed;
    RETURN NEXT;
END $$;
