-- Admits waiting tasks to a semaphore and asks holders to release. Runs at the end of every call that changes a semaphore,
-- under the lock of its state.

-- Deletes the events of a grant; returns whether its holder may know of the grant.
CREATE OR REPLACE FUNCTION taskyard.semaphore_delete_events(_id integer, _task bigint, _grant bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _known boolean := true;
    _kind text;
    _attempts integer;
BEGIN
    FOR _kind, _attempts IN
        DELETE FROM taskyard.semaphore_event e
        WHERE e.semaphore_id = _id AND e.task_id = _task AND e.grant_no = _grant
        RETURNING e.kind, e.attempts
    LOOP
        _known := _known AND (_kind <> 'acquired' OR _attempts > 0);
    END LOOP;
    RETURN _known;
END $$;

-- Locks several semaphores in the order of their numbers, so that transactions do not deadlock.
CREATE OR REPLACE FUNCTION taskyard.semaphore_lock_all(_keys text[], _tubes text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM taskyard.semaphore_state t
        WHERE t.semaphore_id = ANY (ARRAY(
            SELECT s.id FROM taskyard.semaphore s WHERE s.key = ANY (_keys)
            UNION SELECT u.semaphore FROM taskyard.tube u WHERE u.name = ANY (_tubes)))
        ORDER BY t.semaphore_id FOR UPDATE;
END $$;

-- The same with the semaphores of events whose acknowledgement changes a grant.
CREATE OR REPLACE FUNCTION taskyard.semaphore_lock_all(_keys text[], _tubes text[], _events bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM taskyard.semaphore_state t
        WHERE t.semaphore_id = ANY (ARRAY(
            SELECT s.id FROM taskyard.semaphore s WHERE s.key = ANY (_keys)
            UNION SELECT u.semaphore FROM taskyard.tube u WHERE u.name = ANY (_tubes)
            UNION SELECT e.semaphore_id FROM unnest(_events) AS n(id)
                CROSS JOIN LATERAL (SELECT e.semaphore_id, e.kind FROM taskyard.semaphore_event e
                    WHERE e.id = n.id OFFSET 0) e
                JOIN taskyard.semaphore s ON s.id = e.semaphore_id
                WHERE e.kind = 'acquired' AND s.ack_timeout IS NOT NULL))
        ORDER BY t.semaphore_id FOR UPDATE;
END $$;

CREATE OR REPLACE FUNCTION taskyard.semaphore_lock_all(_keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM taskyard.semaphore_state t
        WHERE t.semaphore_id = ANY (ARRAY(SELECT s.id FROM taskyard.semaphore s WHERE s.key = ANY (_keys)))
        ORDER BY t.semaphore_id FOR UPDATE;
END $$;

-- Gives free places to the best waiting tasks of a semaphore, at most _most; the first is at (_rank, _seq). The grants get
-- the numbers behind _grant. Returns how many there are, how many of them have an event, and the place of the last one.
CREATE OR REPLACE FUNCTION taskyard.semaphore_grant(_id integer, _grant bigint, _lease bigint, _ack bigint,
    _rank float8, _seq bigint, _most integer, _now bigint,
    OUT count integer, OUT events integer, OUT last_rank float8, OUT last_seq bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _gated bigint[];
BEGIN
    WITH best AS MATERIALIZED (
        SELECT b.place, row_number() OVER () AS n FROM (
            SELECT t.ctid AS place FROM taskyard.semaphore_task t
            WHERE t.semaphore_id = _id AND t.status = 'WAIT' AND (t.rank, t.seq) >= (_rank, _seq)
            ORDER BY t.rank, t.seq LIMIT _most) b),
    granted AS (
        UPDATE taskyard.semaphore_task t
        SET status = 'ACQUIRED', grant_no = _grant + b.n, granted = _now,
            -- A taken task of a tube has a lease there, whose end brings the task back. A second lease here could give
            -- the place to another task while the first is still being worked on.
            lease_until = CASE WHEN t.task_id >= 0 THEN _lease END,
            ack_by = CASE WHEN t.task_id >= 0 THEN _ack END, moment = NULL, pinned = false
        FROM best b WHERE t.ctid = b.place
        RETURNING t.task_id, t.grant_no, t.rank, t.seq),
    noted AS (
        INSERT INTO taskyard.semaphore_event (semaphore_id, task_id, grant_no, kind, next_at)
        SELECT _id, g.task_id, g.grant_no, 'acquired', _now FROM granted g
        -- A task of a tube needs no event: its state in the tube changes.
        WHERE g.task_id >= 0 ORDER BY g.grant_no)
    SELECT count(*), array_agg(g.task_id ORDER BY g.grant_no) FILTER (WHERE g.task_id < 0),
        (array_agg(g.rank ORDER BY g.grant_no DESC))[1], (array_agg(g.seq ORDER BY g.grant_no DESC))[1]
        INTO semaphore_grant.count, _gated, last_rank, last_seq FROM granted g;
    events := semaphore_grant.count - coalesce(cardinality(_gated), 0);
    IF _gated IS NOT NULL THEN
        PERFORM taskyard.move_gated(_gated, true);
    END IF;
END $$;

-- Takes back the request to the best of the holders that were asked to release, unless a better task waits: the one behind
-- _skip others, at or behind a place; below 0 the request stays. done says whether it did, news whether there is an event;
-- then the place of the holder follows.
CREATE OR REPLACE FUNCTION taskyard.semaphore_cancel_request(_id integer, _skip integer, _from_rank float8,
    _from_seq bigint, _now bigint, OUT done boolean, OUT news boolean, OUT rank float8, OUT seq bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _h record;
    _w float8;
    _attempts integer;
BEGIN
    done := false;
    news := false;
    IF _skip < 0 THEN
        RETURN;
    END IF;
    SELECT t.task_id, t.priority, t.grant_no, t.rank, t.seq INTO _h FROM taskyard.semaphore_task t
        WHERE t.semaphore_id = _id AND t.status = 'TRY_RELEASE'
        ORDER BY t.rank, t.seq LIMIT 1;
    SELECT t.priority INTO _w FROM taskyard.semaphore_task t
        WHERE t.semaphore_id = _id AND t.status = 'WAIT' AND (t.rank, t.seq) >= (_from_rank, _from_seq)
        ORDER BY t.rank, t.seq OFFSET _skip LIMIT 1;
    done := _w IS NULL OR coalesce(_w <= _h.priority, false);
    IF NOT done THEN
        RETURN;
    END IF;
    rank := _h.rank;
    seq := _h.seq;
    UPDATE taskyard.semaphore_task t SET status = 'ACQUIRED', moment = NULL
        WHERE t.semaphore_id = _id AND t.task_id = _h.task_id;
    DELETE FROM taskyard.semaphore_event e
        WHERE e.semaphore_id = _id AND e.task_id = _h.task_id
            AND e.grant_no = _h.grant_no AND e.kind = 'try_release'
        RETURNING e.attempts INTO _attempts;
    -- A holder to which the request was never handed out needs no `keep` event.
    IF coalesce(_attempts, 1) > 0 THEN
        INSERT INTO taskyard.semaphore_event (semaphore_id, task_id, grant_no, kind, next_at)
            VALUES (_id, _h.task_id, _h.grant_no, 'keep', _now);
        news := true;
    END IF;
END $$;

-- Takes a grant away without an event, if its holder does not know of it: a task of a tube that is not taken, or a grant
-- whose event was never handed out. Returns whether it did.
CREATE OR REPLACE FUNCTION taskyard.semaphore_withdraw_unused(_id integer, _task bigint, _grant bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF _task < 0 AND NOT EXISTS (SELECT 1 FROM taskyard.task k
        WHERE k.tube = taskyard.gated_tube(_task) AND k.id = taskyard.gated_id(_task) AND k.state = 1)
    THEN
        PERFORM taskyard.move_gated(ARRAY[_task], false);
    ELSE
        DELETE FROM taskyard.semaphore_event e
            WHERE e.semaphore_id = _id AND e.task_id = _task AND e.grant_no = _grant
                AND e.kind = 'acquired' AND e.attempts = 0;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    UPDATE taskyard.semaphore_task t
        SET status = 'WAIT', grant_no = NULL, granted = NULL, lease_until = NULL, ack_by = NULL
        WHERE t.semaphore_id = _id AND t.task_id = _task;
    RETURN true;
END $$;

-- Sets when the next tick looks at a semaphore; NULL is not at all.
CREATE OR REPLACE FUNCTION taskyard.semaphore_set_recheck(_id integer, _at bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF _at IS NULL THEN
        DELETE FROM taskyard.semaphore_recheck r WHERE r.semaphore_id = _id;
    ELSE
        INSERT INTO taskyard.semaphore_recheck VALUES (_id, _at)
            ON CONFLICT (semaphore_id) DO UPDATE SET at = excluded.at;
    END IF;
END $$;

-- Asks the worst holder to release: for a better waiting task, one holder for each such task, or because the capacity was
-- lowered. Returns the state after that: with one request more, or with one grant less if the holder did not know of it.
-- If the holder is too young now, sets when it is looked at again.
CREATE OR REPLACE FUNCTION taskyard.semaphore_ask_worst(_s taskyard.semaphore, _n taskyard.semaphore_state,
    _now bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _from_rank float8 := taskyard.semaphore_from_rank(_n);
    _from_seq bigint := taskyard.semaphore_from_seq(_n);
    _tail integer := least(_s.try_release, _s.active);
    _most integer := coalesce(_s.max_revoking, 16);
    _for_waiter boolean := _n.acquired + _n.revoking = _s.active AND _n.revoking < least(_most, _tail);
    _h record;
    _w record;
BEGIN
    -- With no capacity every holder is one too many; otherwise a tail of 0 means that none is ever asked.
    IF NOT _for_waiter AND NOT (_s.shed AND _n.acquired > _s.active AND _n.revoking < _most
        AND (_s.try_release > 0 OR _s.active = 0))
    THEN
        RETURN _n;
    END IF;
    SELECT t.task_id, t.priority, t.grant_no, t.granted, t.rank, t.seq INTO _h FROM taskyard.semaphore_task t
        WHERE t.semaphore_id = _s.id AND t.status = 'ACQUIRED' AND NOT t.pinned AND (t.rank, t.seq)
            <= (coalesce(_n.tail_rank, 'infinity'), coalesce(_n.tail_seq, 0))
        ORDER BY t.rank DESC, t.seq DESC LIMIT 1;
    _n.tail_rank := coalesce(_h.rank, '-infinity');
    _n.tail_seq := coalesce(_h.seq, 0);
    IF _h.task_id IS NULL THEN
        RETURN _n;
    END IF;
    IF _for_waiter THEN
        SELECT t.priority, t.rank, t.seq INTO _w FROM taskyard.semaphore_task t
            WHERE t.semaphore_id = _s.id AND t.status = 'WAIT'
                AND (t.rank, t.seq) >= (_from_rank, _from_seq)
            ORDER BY t.rank, t.seq OFFSET _n.revoking LIMIT 1;
        IF _n.revoking = 0 THEN
            _n := taskyard.semaphore_found(_n, _w.rank, _w.seq);
        END IF;
        -- Compared before it is added: a sum beyond the largest number is an error.
        IF _w.priority IS NULL OR (CASE WHEN _h.priority < 1.7976931348623157e308 - _s.margin
            THEN _w.priority <= _h.priority + _s.margin ELSE true END)
        THEN
            RETURN _n;
        END IF;
    END IF;
    -- The best holders are never asked. Without declines the worst is not one of them: fewer were asked than may be.
    IF _n.declines AND _s.active > _tail
        AND NOT taskyard.semaphore_may_ask(_s.id, _n.acquired, _s.active - _tail, _h.rank, _h.seq)
    THEN
        RETURN _n;
    END IF;
    IF _for_waiter AND taskyard.later(_h.granted, _s.min_hold) > _now THEN
        PERFORM taskyard.semaphore_set_recheck(_s.id, taskyard.timer(taskyard.later(_h.granted, _s.min_hold)));
        RETURN _n;
    END IF;
    _n.acquired := _n.acquired - 1;
    IF taskyard.semaphore_withdraw_unused(_s.id, _h.task_id, _h.grant_no) THEN
        RETURN taskyard.semaphore_added(_n, _h.rank, _h.seq, 1);
    END IF;
    _n.revoking := _n.revoking + 1;
    UPDATE taskyard.semaphore_task t SET status = 'TRY_RELEASE', moment = taskyard.later(_now, _s.revoke_grace)
        WHERE t.semaphore_id = _s.id AND t.task_id = _h.task_id;
    DELETE FROM taskyard.semaphore_event e
        WHERE e.semaphore_id = _s.id AND e.task_id = _h.task_id AND e.grant_no = _h.grant_no AND e.kind = 'keep';
    -- A `keep` that was not handed out yet answers an earlier request that may have been handed out. So the new request
    -- counts as handed out: if it is taken back, another `keep` must follow.
    INSERT INTO taskyard.semaphore_event (semaphore_id, task_id, grant_no, kind, attempts, next_at)
        VALUES (_s.id, _h.task_id, _h.grant_no, 'try_release', CASE WHEN FOUND THEN 1 ELSE 0 END, _now);
    RETURN _n;
END $$;

-- The same if there is a moment. Returns the one that is set.
CREATE OR REPLACE FUNCTION taskyard.semaphore_recheck_at(_id integer, _at bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF _at IS NOT NULL THEN
        PERFORM taskyard.semaphore_set_recheck(_id, _at);
    END IF;
    RETURN (SELECT r.at FROM taskyard.semaphore_recheck r WHERE r.semaphore_id = _id);
END $$;

DROP FUNCTION IF EXISTS taskyard.semaphore_settle(taskyard.semaphore, taskyard.semaphore_state, integer, integer,
    bigint);
DROP FUNCTION IF EXISTS taskyard.semaphore_settle(taskyard.semaphore, taskyard.semaphore_state,
    taskyard.semaphore_state, integer, integer, bigint);

-- Takes steps until none is left, or so many were taken that other callers should have their turn; then the next tick
-- goes on. A step admits waiting tasks, takes a request back, or asks a holder to release; the last two look behind as many
-- waiting tasks as there are requests, which is part of their price. Writes the state if it changed. _old is the state as it
-- is written, _n the same with what the caller changed. _deadline is the earliest moment that was set, _news whether there
-- are new events. Plans are made once, perhaps for an empty table: they must not read the rows of other semaphores.
CREATE OR REPLACE FUNCTION taskyard.semaphore_advance(_s taskyard.semaphore, _old taskyard.semaphore_state,
    _n taskyard.semaphore_state, _now bigint, OUT _deadline bigint, OUT _news boolean)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    _left integer := {{ADMIT_STEPS_MAX}};
    _rank float8;
    _seq bigint;
    _granted record;
    _canceled record;
    _asked taskyard.semaphore_state;
    _done boolean;
BEGIN
    _news := false;
    IF _s.min_hold > 0 THEN
        PERFORM taskyard.semaphore_set_recheck(_s.id, NULL);
    END IF;
    WHILE _left > 0 LOOP
        IF _n.acquired + _n.revoking < _s.active THEN
            -- Most releases find no waiting task, and to look for one is much cheaper than to try to grant.
            SELECT t.rank, t.seq INTO _rank, _seq FROM taskyard.semaphore_task t
                WHERE t.semaphore_id = _s.id AND t.status = 'WAIT'
                    AND (t.rank, t.seq) >= (taskyard.semaphore_from_rank(_n), taskyard.semaphore_from_seq(_n))
                ORDER BY t.rank, t.seq LIMIT 1;
            _n := taskyard.semaphore_found(_n, _rank, _seq);
            IF _rank IS NOT NULL THEN
                _granted := taskyard.semaphore_grant(_s.id, _n.grant_seq, taskyard.later(_now, _s.lease),
                    taskyard.later(_now, _s.ack_timeout), _rank, _seq,
                    least(_s.active - _n.acquired - _n.revoking, _left), _now);
                _n := taskyard.semaphore_admitted(_n, _granted.last_rank, _granted.last_seq, _granted.count);
                _left := _left - _granted.count;
                _news := _news OR _granted.events > 0;
                _deadline := CASE WHEN _granted.events > 0
                    THEN least(_deadline, taskyard.later(_now, least(_s.lease, _s.ack_timeout))) ELSE _deadline END;
                CONTINUE WHEN _left <= 0;
            END IF;
        END IF;
        IF _n.revoking > 0 THEN
            _canceled := taskyard.semaphore_cancel_request(_s.id, _n.revoking - 1 - CASE WHEN _s.shed
                THEN greatest(_n.acquired + _n.revoking - _s.active, 0) ELSE 0 END,
                taskyard.semaphore_from_rank(_n), taskyard.semaphore_from_seq(_n), _now);
            IF _canceled.done THEN
                _left := _left - 1 - _n.revoking / {{ADMIT_STEP_PLACES}};
                _n := taskyard.semaphore_kept(_n, _canceled.rank, _canceled.seq);
                _news := _news OR _canceled.news;
                CONTINUE;
            END IF;
        END IF;
        IF _n.declines THEN
            _n := taskyard.semaphore_end_declines(_s, _n, _n.acquired + _n.revoking);
        END IF;
        EXIT WHEN _n.acquired + _n.revoking < _s.active;
        _asked := taskyard.semaphore_ask_worst(_s, _n, _now);
        _done := _asked.acquired < _n.acquired;
        _left := CASE WHEN _done THEN _left - 1 - _n.revoking / {{ADMIT_STEP_PLACES}} ELSE _left END;
        _news := _news OR _asked.revoking > _n.revoking;
        _deadline := CASE WHEN _asked.revoking > _n.revoking
            THEN least(_deadline, taskyard.later(_now, _s.revoke_grace)) ELSE _deadline END;
        _n := _asked;
        EXIT WHEN NOT _done;
    END LOOP;
    IF _n IS DISTINCT FROM _old THEN
        UPDATE taskyard.semaphore_state t SET (acquired, revoking, grant_seq, rest_rank, rest_seq, ahead, head_rank,
                head_seq, tail_rank, tail_seq, declines) = (_n.acquired, _n.revoking, _n.grant_seq, _n.rest_rank, _n.rest_seq,
                _n.ahead, _n.head_rank, _n.head_seq, _n.tail_rank, _n.tail_seq, _n.declines) WHERE t.semaphore_id = _s.id;
    END IF;
    IF _left <= 0 OR _s.min_hold > 0 THEN
        _deadline := least(_deadline, taskyard.semaphore_recheck_at(_s.id, CASE WHEN _left <= 0 THEN _now END));
    END IF;
    _deadline := taskyard.timer(_deadline);
END $$;
