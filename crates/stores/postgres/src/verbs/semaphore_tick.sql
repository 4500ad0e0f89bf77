-- Ticks of semaphores: ends what is due.

-- Asks a holder to release once more, unless the first request was not handed out yet. Returns whether there is a new event.
CREATE OR REPLACE FUNCTION taskyard.semaphore_ask_again(_id integer, _task bigint, _grant bigint, _now bigint,
    _again bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE taskyard.semaphore_task t SET moment = _again WHERE t.semaphore_id = _id AND t.task_id = _task;
    IF EXISTS (SELECT 1 FROM taskyard.semaphore_event e WHERE e.semaphore_id = _id
        AND e.task_id = _task AND e.grant_no = _grant AND e.kind = 'try_release')
    THEN
        RETURN false;
    END IF;
    INSERT INTO taskyard.semaphore_event (semaphore_id, task_id, grant_no, kind, attempts, next_at)
        VALUES (_id, _task, _grant, 'try_release', 1, _now);
    RETURN true;
END $$;

-- Ends a grant whose lease or acknowledgement time is over (_over), or that was not released in time. Returns the state
-- after that, whether there is a new event, and the moment from which the task waits again.
CREATE OR REPLACE FUNCTION taskyard.semaphore_end_grant(_s taskyard.semaphore, INOUT _n taskyard.semaphore_state,
    _k taskyard.semaphore_task, _over boolean, _now bigint, OUT _news boolean, OUT _back bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _lease_over boolean := coalesce(_k.lease_until <= _now, false);
    _heard boolean;
BEGIN
    IF _k.status = 'ACQUIRED' THEN
        _n.acquired := _n.acquired - 1;
    ELSE
        _n.revoking := _n.revoking - 1;
    END IF;
    _heard := taskyard.semaphore_delete_events(_s.id, _k.task_id, _k.grant_no);
    _news := _heard OR NOT _over;
    IF _news THEN
        INSERT INTO taskyard.semaphore_event (semaphore_id, task_id, grant_no, kind, next_at)
            VALUES (_s.id, _k.task_id, _k.grant_no, CASE WHEN _over THEN 'expired' ELSE 'revoked' END, _now);
    END IF;
    -- A holder that was never informed of its grant did not let it run out.
    IF _lease_over AND _heard AND _s.drop_expired THEN
        DELETE FROM taskyard.semaphore_task t WHERE t.semaphore_id = _s.id AND t.task_id = _k.task_id;
        RETURN;
    END IF;
    -- After a grant that was not acknowledged the task waits for a while: its receiver may be down.
    _back := taskyard.later(_now, CASE
        WHEN NOT _over THEN nullif(_s.cool_down, 0)
        WHEN _lease_over THEN NULL
        ELSE _s.ack_timeout
    END);
    _n := taskyard.semaphore_requeue(_n, _k.task_id, _back);
END $$;

-- Ends what is due in one semaphore, which the caller has locked.
CREATE OR REPLACE FUNCTION taskyard.semaphore_end_waits(_s taskyard.semaphore,
    _state taskyard.semaphore_state, _now bigint, OUT _deadline bigint, OUT _news boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _k taskyard.semaphore_task;
    _n taskyard.semaphore_state := _state;
    _over boolean;
    _again bigint;
    _earliest bigint;
    _noted boolean := false;
    _ended record;
    _advanced record;
BEGIN
    FOR _k IN SELECT t.* FROM taskyard.semaphore_task t
        WHERE t.semaphore_id = _s.id AND t.timer <= _now
        ORDER BY t.timer, t.task_id LIMIT {{BATCH_TASKS_MAX}}
    LOOP
        IF _k.status = 'DELAYED' THEN
            UPDATE taskyard.semaphore_task t SET status = 'WAIT', moment = NULL
                WHERE t.semaphore_id = _s.id AND t.task_id = _k.task_id;
            _n := taskyard.semaphore_added(_n, _k.rank, _k.seq, 1);
            CONTINUE;
        END IF;
        _over := coalesce(least(_k.lease_until, _k.ack_by) <= _now, false);
        -- The place of a task that is taken in its tube becomes free when its delivery ends, and not before.
        IF NOT _over AND (NOT _s.force OR _k.task_id < 0) THEN
            _again := taskyard.later(_now, _s.revoke_grace);
            _noted := taskyard.semaphore_ask_again(_s.id, _k.task_id, _k.grant_no, _now, _again) OR _noted;
            _earliest := least(_earliest, _again);
            CONTINUE;
        END IF;
        _ended := taskyard.semaphore_end_grant(_s, _n, _k, _over, _now);
        _n := _ended._n;
        _noted := _noted OR _ended._news;
        _earliest := least(_earliest, _ended._back);
    END LOOP;
    PERFORM taskyard.semaphore_set_recheck(_s.id, NULL);
    _advanced := taskyard.semaphore_advance(_s, _state, _n, _now);
    _deadline := taskyard.timer(least(_earliest, _advanced._deadline));
    _news := _noted OR _advanced._news;
END $$;

-- Ends what is due in at most _limit semaphores. Returns in how many something was due, and the next deadline of all.
-- Semaphores that other transactions have locked are left to the next tick.
CREATE OR REPLACE FUNCTION taskyard.semaphore_tick(_now bigint, _limit bigint,
    OUT _moved integer, OUT _deadline bigint, OUT _news boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _id integer;
    _s taskyard.semaphore;
    _state taskyard.semaphore_state;
    _ended record;
    _failed boolean := false;
BEGIN
    _moved := 0;
    _news := false;
    FOR _id IN
        SELECT d.semaphore_id FROM (
            (SELECT t.semaphore_id, t.timer AS at FROM taskyard.semaphore_task t
                WHERE t.timer <= _now ORDER BY t.timer LIMIT {{BATCH_TASKS_MAX}})
            UNION ALL
            (SELECT r.semaphore_id, r.at FROM taskyard.semaphore_recheck r
                WHERE r.at <= _now ORDER BY r.at LIMIT {{BATCH_TASKS_MAX}})) d
        GROUP BY d.semaphore_id ORDER BY min(d.at), d.semaphore_id LIMIT _limit
    LOOP
        SELECT t.* INTO _state FROM taskyard.semaphore_state t WHERE t.semaphore_id = _id
            FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        SELECT s.* INTO _s FROM taskyard.semaphore s WHERE s.id = _id;
        BEGIN
            SELECT * INTO _ended FROM taskyard.semaphore_end_waits(_s, _state, _now);
            _moved := _moved + 1;
            _news := _news OR _ended._news;
        EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
            -- Unforeseen values in one semaphore must not stop the ticks of all others and of all tubes.
            RAISE WARNING 'the tick of semaphore % failed: %', _s.key, SQLERRM;
            _failed := true;
        END;
    END LOOP;
    SELECT least(
        (SELECT t.timer FROM taskyard.semaphore_task t WHERE t.timer IS NOT NULL ORDER BY t.timer LIMIT 1),
        (SELECT r.at FROM taskyard.semaphore_recheck r ORDER BY r.at LIMIT 1)) INTO _deadline;
    IF _failed THEN
        -- It is tried again, but not at once.
        _deadline := greatest(_deadline, _now + 1000000);
    END IF;
END $$;

-- The tick of tubes and semaphores together: the answer of taskyard.tick, with semaphores counted in, after a row
-- with event 8 when there are new events.
CREATE OR REPLACE FUNCTION taskyard.tick_all(_now bigint, _limit bigint, _from bigint, _seed bigint DEFAULT NULL)
RETURNS TABLE (event integer, number integer, name text, count bigint, status smallint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    _ticked record;
    _row record;
    _end record;
    _clock record;
BEGIN
    FOR _row IN SELECT * FROM taskyard.tick(_now, _limit, _from, _seed) LOOP
        IF _row.event = 0 THEN
            _end := _row;
        ELSIF _row.event = 6 AND _row.number >= 0 THEN
            _clock := _row;
        ELSE
            RETURN QUERY SELECT _row.event, _row.number, _row.name, _row.count, _row.status;
        END IF;
    END LOOP;
    -- After the tubes: a deleted task does not need its place any more.
    SELECT * INTO _ticked FROM taskyard.semaphore_tick(coalesce(_now, taskyard.clock()), _limit);
    IF _ticked._news THEN
        RETURN QUERY SELECT 8, NULL::integer, NULL::text, NULL::bigint, 0::smallint;
    END IF;
    RETURN QUERY SELECT 6, -1, NULL::text, s.next, 0::smallint FROM taskyard.schedule s
        WHERE NOT s.paused AND s.next IS NOT NULL ORDER BY s.next, s.name LIMIT 1;
    RETURN QUERY SELECT 0, _end.number + _ticked._moved, NULL::text,
        least(_end.count, _ticked._deadline), 0::smallint;
    RETURN QUERY SELECT 6, _clock.number, NULL::text, _clock.count, 0::smallint;
END $$;

-- Inconsistencies of semaphores; should be empty. A place that is counted but not held would be lost for ever, one that is held
-- but not counted would be given twice.
CREATE OR REPLACE VIEW taskyard.semaphore_audit AS
    SELECT s.key, t.acquired, t.revoking, c.acquired AS acquired_rows, c.revoking AS revoking_rows,
        c.waiting, s.active
    FROM taskyard.semaphore s
    JOIN taskyard.semaphore_state t ON t.semaphore_id = s.id
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE k.status = 'ACQUIRED') AS acquired,
            count(*) FILTER (WHERE k.status = 'TRY_RELEASE') AS revoking,
            count(*) FILTER (WHERE k.status = 'WAIT') AS waiting,
            count(DISTINCT k.grant_no) AS grants,
            coalesce(max(k.grant_no), 0) AS newest
        FROM taskyard.semaphore_task k WHERE k.semaphore_id = s.id) c
    WHERE (t.acquired, t.revoking) <> (c.acquired, c.revoking)
        OR c.grants <> c.acquired + c.revoking
        OR c.newest > t.grant_seq
        -- Unless there were too many steps for one call, and the next tick goes on.
        OR (c.waiting > 0 AND c.acquired + c.revoking < s.active AND NOT EXISTS (
            SELECT 1 FROM taskyard.semaphore_recheck r WHERE r.semaphore_id = s.id))
        -- A decline that no search finds would last for ever.
        OR (NOT t.declines AND EXISTS (SELECT 1 FROM taskyard.semaphore_task k
            WHERE k.semaphore_id = s.id AND k.pinned))
        -- A waiting task before the bounds of the search.
        OR EXISTS (SELECT 1 FROM taskyard.semaphore_task k
            WHERE k.semaphore_id = s.id AND k.status = 'WAIT'
                AND (k.rank, k.seq) < (taskyard.semaphore_from_rank(t), taskyard.semaphore_from_seq(t)))
        OR t.ahead < (SELECT count(*) FROM taskyard.semaphore_task k
            WHERE k.semaphore_id = s.id AND k.status = 'WAIT' AND (k.rank, k.seq) < (t.rest_rank, t.rest_seq))
        OR EXISTS (SELECT 1 FROM taskyard.semaphore_task k
            WHERE k.semaphore_id = s.id AND k.status = 'ACQUIRED' AND NOT k.pinned
                AND (k.rank, k.seq) > (t.tail_rank, t.tail_seq));
