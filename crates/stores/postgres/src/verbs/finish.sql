-- How deliveries end, and what else moves a task by hand.
--
-- Answers begin with item 0: its outcome is a status (0 done, 1 no such tube, 6 more bytes than may be
-- shown, as its id, 7 the kind has no touch), its id the room of a tube with a capacity, its lease
-- the number of the tube, its state the sum of 1 where a task that left may let another of its sub-queue run and 2
-- where one of its semaphore, its timer the next deadline that was set.

-- Whether a session lives.
CREATE OR REPLACE FUNCTION taskyard.is_alive(_session bytea, _now bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM taskyard.session s
        WHERE s.id = _session AND coalesce(s.ends, 9223372036854775807) > _now)
$$;

-- Whether a delivery is under way and held by who says so: 0 whoever knows the lease, 1 the session, 2
-- anybody.
CREATE OR REPLACE FUNCTION taskyard.is_held(
    _task taskyard.task, _now bigint, _holder smallint, _lease bigint, _session bytea)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT (_task).state = 1 AND coalesce((_task).timer, 9223372036854775807) > _now
        AND CASE _holder
            WHEN 0 THEN (_task).lease = _lease
            WHEN 1 THEN coalesce((_task).session = _session, false)
                AND taskyard.is_alive(_session, _now)
            ELSE true
        END
$$;

-- Acks. The ids are sorted and different; without _holders all are by lease. Besides item 0 there is a row for
-- each item that is not done and, with _show, for each that is. _lay has where the deliveries lay that these
-- leases were given for, as far as the caller remembers; it has made sure that their ids are these.
CREATE OR REPLACE FUNCTION taskyard.ack_tasks(
    _tube text, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[],
    _sessions bytea[], _show boolean, _bytes_max bigint, _lay tid[])
RETURNS SETOF taskyard.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _head taskyard.outcome;
    _keys text[];
    _done bigint[];
    _places tid[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _head.item := 0;
    _head.outcome := 0;
    IF NOT FOUND THEN
        _head.outcome := 1;
        RETURN NEXT _head;
        RETURN;
    END IF;
    _now := coalesce(_now, taskyard.clock());
    _head.lease := _t.number;
    _head.state := _t.has_subqueues::integer + CASE WHEN _t.semaphore IS NULL THEN 0 ELSE 2 END;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
    END IF;
    IF _show THEN
        _head.id := taskyard.shown_bytes(_t.number, _ids);
        IF _head.id > _bytes_max THEN
            _head.outcome := 6;
            RETURN NEXT _head;
            RETURN;
        END IF;
    END IF;
    IF _t.has_subqueues THEN
        _keys := taskyard.lock_subqueues_of(_t.number, _ids);
    END IF;
    IF _show THEN
        PERFORM taskyard.lock_tasks(_t.number, _ids);
        RETURN QUERY SELECT v.* FROM unnest(_ids, _holders, _leases, _sessions)
                WITH ORDINALITY AS i(id, holder, lease, session, item)
            CROSS JOIN LATERAL (SELECT k AS task FROM taskyard.task k
                WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t
            CROSS JOIN LATERAL taskyard.view_task(
                i.item::integer, 1::smallint, t.task, _t.paused, _now, true) v
            WHERE taskyard.is_held(
                t.task, _now, coalesce(i.holder, 0::smallint), i.lease, i.session);
    END IF;
    IF _holders IS NULL AND _lay IS NOT NULL THEN
        -- A lease is of one delivery for ever, so whatever lies there with it is meant. No condition that an
        -- index serves: see lock_tasks.
        WITH gone AS (
            DELETE FROM taskyard.task t USING unnest(_lay, _leases) AS h(place, lease)
            WHERE t.ctid = h.place AND t.lease = h.lease AND t.tube IS NOT DISTINCT FROM _t.number
                AND coalesce(t.timer, 9223372036854775807) > _now
            RETURNING t.id)
        SELECT array_agg(g.id) INTO _done FROM gone g;
    ELSIF _holders IS NULL THEN
        WITH gone AS (
            DELETE FROM taskyard.task t USING (
                SELECT k.place, i.lease FROM unnest(_ids, _leases) AS i(id, lease)
                CROSS JOIN LATERAL (SELECT k.ctid AS place FROM taskyard.task k
                    WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) k) h
            WHERE t.ctid = h.place AND t.lease = h.lease
                AND coalesce(t.timer, 9223372036854775807) > _now
            RETURNING t.id)
        SELECT array_agg(g.id) INTO _done FROM gone g;
    END IF;
    IF _holders IS NOT NULL OR coalesce(cardinality(_done), 0) < cardinality(_ids) THEN
        -- What is held in another way, and what somebody else has changed between the look and the
        -- deletion: locked, it stays where it is.
        PERFORM taskyard.lock_tasks(_t.number, _ids);
        _places := ARRAY(SELECT t.place
            FROM unnest(_ids, _holders, _leases, _sessions) AS i(id, holder, lease, session)
            CROSS JOIN LATERAL (SELECT k.ctid AS place, k AS task FROM taskyard.task k
                WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t
            WHERE taskyard.is_held(
                t.task, _now, coalesce(i.holder, 0::smallint), i.lease, i.session));
        WITH gone AS (DELETE FROM taskyard.task t WHERE t.ctid = ANY (_places) RETURNING t.id)
        SELECT _done || array_agg(g.id) INTO _done FROM gone g;
    END IF;
    IF _done IS NOT NULL THEN
        INSERT INTO taskyard.count (tube, taken) VALUES (_t.number, -cardinality(_done));
    END IF;
    IF coalesce(cardinality(_done), 0) < cardinality(_ids) THEN
        RETURN QUERY SELECT i.item::integer,
            (CASE WHEN t.id IS NULL THEN 2 ELSE 1 END)::smallint, 0::smallint,
            NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bytea,
            NULL::text, NULL::smallint, NULL::bytea, NULL::bytea
            FROM unnest(_ids) WITH ORDINALITY AS i(id, item)
            LEFT JOIN LATERAL (SELECT k.id FROM taskyard.task k
                WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t ON true
            WHERE _done IS NULL OR NOT i.id = ANY (_done);
    END IF;
    IF _t.has_subqueues THEN
        PERFORM taskyard.settle_subqueues(_t.number, _keys);
    END IF;
    IF _t.semaphore IS NOT NULL AND _done IS NOT NULL THEN
        _head.timer := taskyard.regate(_t, _done, _now);
    END IF;
    _head.id := taskyard.room(_t.number, _t.capacity);
    RETURN NEXT _head;
END $$;

-- The same without places, as servers of earlier versions ask.
CREATE OR REPLACE FUNCTION taskyard.ack_tasks(
    _tube text, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[],
    _sessions bytea[], _show boolean, _bytes_max bigint)
RETURNS SETOF taskyard.outcome LANGUAGE sql VOLATILE AS $$
    SELECT * FROM taskyard.ack_tasks(_tube, _now, _ids, _holders, _leases, _sessions, _show,
        _bytes_max, NULL)
$$;

-- Ends or prolongs deliveries one after the other: _verbs has 0 ack, 1 release, 2 bury, 3 touch. There
-- is a row for each item.
CREATE OR REPLACE FUNCTION taskyard.finish_tasks(
    _tube text, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[],
    _sessions bytea[], _verbs smallint[], _spans bigint[], _counted boolean[], _show boolean,
    _bytes_max bigint)
RETURNS SETOF taskyard.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _head taskyard.outcome;
    _row taskyard.outcome;
    _task taskyard.task;
    _keys text[];
    _held boolean;
    _used_up boolean;
    _before smallint;
    -- How many more or less are in each state, from 0.
    _more bigint[] := '[0:6]={0,0,0,0,0,0,0}';
    -- What a semaphore may still change is shown when it has.
    _moved bigint[];
    _shown taskyard.outcome[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _head.item := 0;
    _head.outcome := 0;
    IF NOT FOUND THEN
        _head.outcome := 1;
        RETURN NEXT _head;
        RETURN;
    END IF;
    _now := coalesce(_now, taskyard.clock());
    _head.lease := _t.number;
    _head.state := _t.has_subqueues::integer + CASE WHEN _t.semaphore IS NULL THEN 0 ELSE 2 END;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
    END IF;
    IF _show THEN
        _head.id := taskyard.shown_bytes(_t.number, _ids);
        IF _head.id > _bytes_max THEN
            _head.outcome := 6;
            RETURN NEXT _head;
            RETURN;
        END IF;
    END IF;
    IF _t.has_subqueues THEN
        _keys := taskyard.lock_subqueues_of(_t.number, _ids);
    END IF;
    PERFORM taskyard.lock_tasks(_t.number, _ids);
    -- A kind without times has no touch, except for deliveries whose taker named a lease time.
    IF NOT _t.has_times AND 3 = ANY (_verbs) AND EXISTS (
        SELECT 1 FROM unnest(_ids, _holders, _leases, _sessions, _verbs)
            AS i(id, holder, lease, session, verb)
        CROSS JOIN LATERAL (SELECT k AS task FROM taskyard.task k
            WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t
        WHERE i.verb = 3 AND NOT (t.task).explicit
            AND taskyard.is_held(
                t.task, _now, coalesce(i.holder, 0::smallint), i.lease, i.session))
    THEN
        _head.outcome := 7;
        RETURN NEXT _head;
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(_ids) LOOP
        _row := NULL;
        _row.item := i;
        _row.event := 0;
        SELECT * INTO _task FROM taskyard.task t WHERE t.tube = _t.number AND t.id = _ids[i];
        IF NOT FOUND THEN
            _row.outcome := 2;
            RETURN NEXT _row;
            CONTINUE;
        END IF;
        _held := taskyard.is_held(
            _task, _now, coalesce(_holders[i], 0::smallint), _leases[i], _sessions[i]);
        IF NOT _held AND NOT (_verbs[i] = 2 AND coalesce(_holders[i], 0) = 2) THEN
            _row.outcome := 1;
            RETURN NEXT _row;
            CONTINUE;
        END IF;
        _before := _task.state;
        IF _verbs[i] = 0 THEN
            _more[1] := _more[1] - 1;
            DELETE FROM taskyard.task t WHERE t.tube = _t.number AND t.id = _ids[i];
            _row.event := 1;
        ELSIF _verbs[i] = 1 THEN
            IF NOT _t.has_times THEN
                _spans[i] := 0;
            END IF;
            _used_up := false;
            IF _counted[i] THEN
                _task.previous_start := coalesce(_task.since, _task.created);
                _task.since := _now;
                _task.attempts := least(_task.attempts + 1, 4294967295);
                _used_up := _task.attempts >= coalesce(_t.attempts_max, 4294967295);
            END IF;
            IF NOT _used_up AND _spans[i] > 0 THEN
                _task.state := 2;
                _task.expires := taskyard.later(_task.expires, _spans[i]);
                _task.timer := taskyard.timer(taskyard.later(_now, _spans[i]));
            ELSE
                _task.state := CASE WHEN _used_up THEN 4 ELSE 0 END;
                _task.timer := taskyard.timer(_task.expires);
            END IF;
            _task.lease := NULL;
            _task.session := NULL;
            _task.start := NULL;
            _task.explicit := NULL;
            _row.event := CASE WHEN _used_up THEN 3 ELSE 2 END;
        ELSIF _verbs[i] = 2 THEN
            IF _task.state NOT IN (3, 4) THEN
                _task.state := 3;
                _task.timer := taskyard.timer(_task.expires);
                _task.lease := NULL;
                _task.session := NULL;
                _task.start := NULL;
                _task.explicit := NULL;
                _row.event := 4;
            END IF;
        ELSIF _spans[i] > 0 THEN
            _task.timer := taskyard.timer(taskyard.later(
                coalesce(_task.timer, 9223372036854775807), _spans[i]));
            _task.expires := taskyard.later(_task.expires, _spans[i]);
            _task.ttr := least(_task.ttr + _spans[i], 3153600000000000);
            _row.event := 5;
        END IF;
        IF _row.event > 1 THEN
            UPDATE taskyard.task t SET state = _task.state, expires = _task.expires, ttr = _task.ttr,
                timer = _task.timer, attempts = _task.attempts,
                previous_start = _task.previous_start, since = _task.since, lease = _task.lease, start = _task.start,
                explicit = _task.explicit, session = _task.session
                WHERE t.tube = _t.number AND t.id = _ids[i];
            _head.timer := least(_head.timer, _task.timer);
            _more[_before] := _more[_before] - 1;
            _more[_task.state] := _more[_task.state] + 1;
        END IF;
        _moved := _moved || _ids[i];
        IF _show AND _t.semaphore IS NOT NULL THEN
            SELECT v.* INTO _row FROM
                taskyard.view_task(i, _row.event, _task, _t.paused, _now, _verbs[i] = 0) v;
            _shown := _shown || _row;
        ELSIF _show THEN
            RETURN QUERY SELECT v.* FROM
                taskyard.view_task(i, _row.event, _task, _t.paused, _now, _verbs[i] = 0) v;
        ELSE
            _row.outcome := 0;
            _row.state := _task.state;
            RETURN NEXT _row;
        END IF;
    END LOOP;
    INSERT INTO taskyard.count (tube, ready, passed, taken, delayed, buried)
        SELECT _t.number, _more[0], _more[5], _more[1], _more[2] + _more[6], _more[3] + _more[4]
        WHERE _more <> '[0:6]={0,0,0,0,0,0,0}';
    IF _t.has_subqueues THEN
        PERFORM taskyard.settle_subqueues(_t.number, _keys);
    END IF;
    IF _t.semaphore IS NOT NULL AND _moved IS NOT NULL THEN
        _head.timer := least(_head.timer, taskyard.regate(_t, _moved, _now));
        FOREACH _row IN ARRAY coalesce(_shown, '{}') LOOP
            SELECT k.* INTO _task FROM taskyard.task k WHERE k.tube = _t.number AND k.id = _row.id;
            IF FOUND AND _row.state = 0 AND _row.reason <> 8 THEN
                SELECT v.* INTO _row FROM
                    taskyard.view_task(_row.item, _row.event, _task, _t.paused, _now, false) v;
            END IF;
            RETURN NEXT _row;
        END LOOP;
    END IF;
    _head.id := taskyard.room(_t.number, _t.capacity);
    RETURN NEXT _head;
END $$;

-- Removes tasks, whoever holds them. Besides item 0 there is a row for each task that was there, in
-- any order, its item the first place of its id.
CREATE OR REPLACE FUNCTION taskyard.delete_tasks(
    _tube text, _now bigint, _ids bigint[], _show boolean, _bytes_max bigint)
RETURNS SETOF taskyard.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _head taskyard.outcome;
    _places tid[];
    _keys text[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _head.item := 0;
    _head.outcome := 0;
    IF NOT FOUND THEN
        _head.outcome := 1;
        RETURN NEXT _head;
        RETURN;
    END IF;
    _now := coalesce(_now, taskyard.clock());
    _head.lease := _t.number;
    _head.state := _t.has_subqueues::integer + CASE WHEN _t.semaphore IS NULL THEN 0 ELSE 2 END;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
    END IF;
    IF _show THEN
        _head.id := taskyard.shown_bytes(_t.number, _ids);
        IF _head.id > _bytes_max THEN
            _head.outcome := 6;
            RETURN NEXT _head;
            RETURN;
        END IF;
    END IF;
    IF _t.has_subqueues THEN
        _keys := taskyard.lock_subqueues_of(_t.number, _ids);
    END IF;
    _places := taskyard.lock_tasks(_t.number, _ids);
    RETURN QUERY SELECT v.item, v.outcome, v.event, v.id, v.state, v.pri, v.created, v.expires, v.ttr,
            v.timer, v.attempts, v.previous_start, v.lease, v.start, v.session, v.subqueue, v.reason,
            CASE WHEN _show THEN v.meta END, CASE WHEN _show THEN v.payload END
        FROM (SELECT n.id, min(n.item) AS item
            FROM unnest(_ids) WITH ORDINALITY AS n(id, item) GROUP BY n.id) i
        CROSS JOIN LATERAL (SELECT k AS task FROM taskyard.task k
            WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t
        CROSS JOIN LATERAL
            taskyard.view_task(i.item::integer, 0::smallint, t.task, _t.paused, _now, true) v;
    WITH gone AS (
        DELETE FROM taskyard.task t WHERE t.ctid = ANY (_places) RETURNING t.state)
    INSERT INTO taskyard.count (tube, ready, passed, taken, delayed, buried)
        SELECT _t.number, -count(*) FILTER (WHERE g.state = 0),
            -count(*) FILTER (WHERE g.state = 5), -count(*) FILTER (WHERE g.state = 1),
            -count(*) FILTER (WHERE g.state IN (2, 6)), -count(*) FILTER (WHERE g.state IN (3, 4))
        FROM gone g HAVING count(*) > 0;
    IF _t.has_subqueues THEN
        PERFORM taskyard.settle_subqueues(_t.number, _keys);
    END IF;
    IF _t.semaphore IS NOT NULL THEN
        _head.timer := taskyard.regate(_t, _ids, _now);
    END IF;
    _head.id := taskyard.room(_t.number, _t.capacity);
    RETURN NEXT _head;
END $$;

-- Brings buried tasks back, lowest (pri, id) first.
CREATE OR REPLACE FUNCTION taskyard.kick_tasks(
    _tube text, _count bigint, _now bigint, OUT status smallint, OUT number integer,
    OUT kicked bigint, OUT wakeup bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _ids bigint[];
    _places tid[];
    _keys text[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    IF NOT FOUND THEN
        status := 1;
        RETURN;
    END IF;
    status := 0;
    number := _t.number;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
    END IF;
    _ids := ARRAY(SELECT t.id FROM taskyard.task t
        WHERE t.tube = _t.number AND t.state IN (3, 4) ORDER BY t.pri, t.id LIMIT _count);
    IF _t.has_subqueues THEN
        _keys := taskyard.lock_subqueues_of(_t.number, _ids);
    END IF;
    PERFORM taskyard.lock_tasks(_t.number, _ids);
    _places := ARRAY(SELECT t.place FROM unnest(_ids) AS i(id)
        CROSS JOIN LATERAL (SELECT k.ctid AS place, k.state FROM taskyard.task k
            WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t
        WHERE t.state IN (3, 4));
    UPDATE taskyard.task t SET state = 0, since = coalesce(_now, taskyard.clock())
        WHERE t.ctid = ANY (_places);
    GET DIAGNOSTICS kicked = ROW_COUNT;
    INSERT INTO taskyard.count (tube, ready, buried)
        SELECT _t.number, kicked, -kicked WHERE kicked > 0;
    IF _t.has_subqueues THEN
        PERFORM taskyard.settle_subqueues(_t.number, _keys);
    END IF;
    IF _t.semaphore IS NOT NULL THEN
        wakeup := taskyard.regate(_t, _ids, _now);
    END IF;
END $$;

-- For servers of before there were semaphores.
CREATE OR REPLACE FUNCTION taskyard.kick_tasks(
    _tube text, _count bigint, OUT status smallint, OUT number integer, OUT kicked bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT k.status, k.number, k.kicked FROM taskyard.kick_tasks(_tube, _count, NULL) k
$$;
