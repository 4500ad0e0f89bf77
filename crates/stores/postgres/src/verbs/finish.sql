-- Acks, releases, buries, touches and deletes.
--
-- Answers have an item 0: its outcome is a status (0 done, 1 no such tube, 6 more bytes than may be shown, as its id, 7 the
-- kind has no touch), its id the room of a tube with a capacity, its lease the number of the tube, its state the sum of 1 if
-- the end of a delivery may make another task of the sub-queue ready and 2 if one of the semaphore, its timer the next
-- deadline that was set, its created when the rate limit of the tube allows the next delivery, if it allows none now.

-- Whether a session is alive.
CREATE OR REPLACE FUNCTION taskyard.is_alive(_session bytea, _now bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM taskyard.session s
        WHERE s.id = _session AND coalesce(s.ends, 9223372036854775807) > _now)
$$;

-- Whether a task is taken and the caller proves to hold it: 0 by the lease, 1 by the session, 2 without proof.
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

-- The tasks of an ack as its answer shows them, as far as their holders are right. Locks them.
CREATE OR REPLACE FUNCTION taskyard.show_acked(
    _t taskyard.tube, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[], _sessions bytea[])
RETURNS SETOF taskyard.outcome LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM taskyard.lock_tasks(_t.number, _ids);
    RETURN QUERY SELECT v.* FROM unnest(_ids, _holders, _leases, _sessions)
            WITH ORDINALITY AS i(id, holder, lease, session, item)
        CROSS JOIN LATERAL (SELECT k AS task FROM taskyard.task k
            WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t
        CROSS JOIN LATERAL taskyard.view_task(
            i.item::integer, 1::smallint, t.task, _t.paused, _now, true) v
        WHERE taskyard.is_held(
            t.task, _now, coalesce(i.holder, 0::smallint), i.lease, i.session);
END $$;

-- Deletes the tasks at these places, as far as they are taken with these leases. Returns their ids.
CREATE OR REPLACE FUNCTION taskyard.delete_at(_number integer, _now bigint, _lay tid[], _leases bigint[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _done bigint[];
    _held taskyard.held_key[];
BEGIN
    WITH gone AS (
        DELETE FROM taskyard.task t USING unnest(_lay, _leases) AS h(place, lease)
        WHERE t.ctid = h.place AND t.lease = h.lease AND t.tube IS NOT DISTINCT FROM _number
            AND coalesce(t.timer, 9223372036854775807) > _now
        RETURNING t.id, t.key, t.unique_for)
    SELECT array_agg(g.id), array_agg(ROW(g.id, g.key, g.unique_for, _now)::taskyard.held_key)
            FILTER (WHERE g.key IS NOT NULL)
        INTO _done, _held FROM gone g;
    IF _held IS NOT NULL THEN
        PERFORM taskyard.end_keys(_number, _held, _now);
    END IF;
    RETURN _done;
END $$;

-- Deletes these tasks, as far as they are taken with these leases. Returns their ids.
CREATE OR REPLACE FUNCTION taskyard.delete_leased(_number integer, _now bigint, _ids bigint[], _leases bigint[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _done bigint[];
    _held taskyard.held_key[];
BEGIN
    WITH gone AS (
        DELETE FROM taskyard.task t USING (
            SELECT k.place, i.lease FROM unnest(_ids, _leases) AS i(id, lease)
            CROSS JOIN LATERAL (SELECT k.ctid AS place FROM taskyard.task k
                WHERE k.tube = _number AND k.id = i.id OFFSET 0) k) h
        WHERE t.ctid = h.place AND t.lease = h.lease
            AND coalesce(t.timer, 9223372036854775807) > _now
        RETURNING t.id, t.key, t.unique_for)
    SELECT array_agg(g.id), array_agg(ROW(g.id, g.key, g.unique_for, _now)::taskyard.held_key)
            FILTER (WHERE g.key IS NOT NULL)
        INTO _done, _held FROM gone g;
    IF _held IS NOT NULL THEN
        PERFORM taskyard.end_keys(_number, _held, _now);
    END IF;
    RETURN _done;
END $$;

-- Locks these tasks, so that they stay where they are, and deletes those whose holders are right. Returns their ids.
CREATE OR REPLACE FUNCTION taskyard.delete_held(
    _number integer, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[], _sessions bytea[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _places tid[];
    _done bigint[];
    _held taskyard.held_key[];
BEGIN
    PERFORM taskyard.lock_tasks(_number, _ids);
    _places := ARRAY(SELECT t.place
        FROM unnest(_ids, _holders, _leases, _sessions) AS i(id, holder, lease, session)
        CROSS JOIN LATERAL (SELECT k.ctid AS place, k AS task FROM taskyard.task k
            WHERE k.tube = _number AND k.id = i.id OFFSET 0) t
        WHERE taskyard.is_held(
            t.task, _now, coalesce(i.holder, 0::smallint), i.lease, i.session));
    WITH gone AS (
        DELETE FROM taskyard.task t WHERE t.ctid = ANY (_places) RETURNING t.id, t.key, t.unique_for)
    SELECT array_agg(g.id), array_agg(ROW(g.id, g.key, g.unique_for, _now)::taskyard.held_key)
            FILTER (WHERE g.key IS NOT NULL)
        INTO _done, _held FROM gone g;
    IF _held IS NOT NULL THEN
        PERFORM taskyard.end_keys(_number, _held, _now);
    END IF;
    RETURN _done;
END $$;

-- An item for each of these ids that is not one of _done: outcome 2 if there is no such task, otherwise 1.
CREATE OR REPLACE FUNCTION taskyard.show_refused(_number integer, _ids bigint[], _done bigint[])
RETURNS SETOF taskyard.outcome LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY SELECT i.item::integer,
        (CASE WHEN t.id IS NULL THEN 2 ELSE 1 END)::smallint, 0::smallint,
        NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bytea,
        NULL::text, NULL::smallint, NULL::bytea, NULL::bytea
        FROM unnest(_ids) WITH ORDINALITY AS i(id, item)
        LEFT JOIN LATERAL (SELECT k.id FROM taskyard.task k
            WHERE k.tube = _number AND k.id = i.id OFFSET 0) t ON true
        WHERE _done IS NULL OR NOT i.id = ANY (_done);
END $$;

-- Acks. The ids are sorted and different; without _holders all are by lease. Besides item 0 there is a row for
-- each item that is not done and, with _show, for each that is. _lay has where the deliveries lay that these
-- leases were given for, as far as the caller remembers; it has made sure that their ids are these. A lease number belongs to
-- one delivery for ever, so the row at this place that has it is the right one; no condition that an index serves is used: see
-- lock_tasks. _results has what a tube that keeps done tasks keeps with them.
CREATE OR REPLACE FUNCTION taskyard.ack_tasks(
    _tube text, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[],
    _sessions bytea[], _show boolean, _bytes_max bigint, _lay tid[], _results bytea[])
RETURNS SETOF taskyard.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _head taskyard.outcome;
    _keys text[];
    _done bigint[];
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
    IF _t.has_subqueues THEN
        _keys := taskyard.lock_subqueues_of(_t.number, _ids);
    END IF;
    IF _show THEN
        _head.id := taskyard.shown_bytes(_t.number, _ids);
        IF _head.id > _bytes_max THEN
            _head.outcome := 6;
            RETURN NEXT _head;
            RETURN;
        END IF;
        RETURN QUERY SELECT * FROM taskyard.show_acked(_t, _now, _ids, _holders, _leases, _sessions);
    END IF;
    IF _t.keep_done IS NOT NULL THEN
        _done := taskyard.keep_acked(_t.number, _now, _ids, _holders, _leases, _sessions, _lay, _results);
        _head.timer := _now + 1000000;
    ELSIF _holders IS NULL AND _lay IS NOT NULL THEN
        _done := taskyard.delete_at(_t.number, _now, _lay, _leases);
    ELSIF _holders IS NULL THEN
        _done := taskyard.delete_leased(_t.number, _now, _ids, _leases);
    END IF;
    IF _t.keep_done IS NULL AND (_holders IS NOT NULL OR coalesce(cardinality(_done), 0) < cardinality(_ids)) THEN
        -- What is not held by a lease, and what another transaction changed between the search and the deletion.
        _done := _done || taskyard.delete_held(_t.number, _now, _ids, _holders, _leases, _sessions);
    END IF;
    IF _done IS NOT NULL THEN
        INSERT INTO taskyard.count (tube, taken, kept)
            VALUES (_t.number, -cardinality(_done), CASE WHEN _t.keep_done IS NOT NULL THEN cardinality(_done) END);
    END IF;
    IF coalesce(cardinality(_done), 0) < cardinality(_ids) THEN
        RETURN QUERY SELECT * FROM taskyard.show_refused(_t.number, _ids, _done);
    END IF;
    IF _t.has_subqueues THEN
        PERFORM taskyard.set_subqueue_heads(_t.number, _keys);
    END IF;
    IF _t.semaphore IS NOT NULL AND _done IS NOT NULL THEN
        _head.timer := least(_head.timer, taskyard.update_gate(_t, _done, _now));
    END IF;
    _head.id := taskyard.room(_t.number, _t.capacity);
    RETURN NEXT _head;
END $$;

-- The same without results, and without places, for servers of earlier versions.
CREATE OR REPLACE FUNCTION taskyard.ack_tasks(
    _tube text, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[],
    _sessions bytea[], _show boolean, _bytes_max bigint, _lay tid[])
RETURNS SETOF taskyard.outcome LANGUAGE sql VOLATILE AS $$
    SELECT * FROM taskyard.ack_tasks(_tube, _now, _ids, _holders, _leases, _sessions, _show,
        _bytes_max, _lay, NULL)
$$;

CREATE OR REPLACE FUNCTION taskyard.ack_tasks(
    _tube text, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[],
    _sessions bytea[], _show boolean, _bytes_max bigint)
RETURNS SETOF taskyard.outcome LANGUAGE sql VOLATILE AS $$
    SELECT * FROM taskyard.ack_tasks(_tube, _now, _ids, _holders, _leases, _sessions, _show,
        _bytes_max, NULL, NULL)
$$;

-- Locks the semaphore of a tube, the sub-queues of these tasks and the tasks. Returns item 0 of an answer about them, the
-- keys of the sub-queues, and where the tasks lie.
CREATE OR REPLACE FUNCTION taskyard.begin_finish(
    _t taskyard.tube, _ids bigint[], _show boolean, _bytes_max bigint, _now bigint,
    OUT _head taskyard.outcome, OUT _keys text[], OUT _places tid[])
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    _head.item := 0;
    _head.outcome := CASE WHEN _t.number IS NULL THEN 1 ELSE 0 END;
    IF _t.number IS NULL THEN
        RETURN;
    END IF;
    _head.lease := _t.number;
    _head.state := _t.has_subqueues::integer + CASE WHEN _t.semaphore IS NULL THEN 0 ELSE 2 END;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
    END IF;
    IF _show THEN
        _head.id := taskyard.shown_bytes(_t.number, _ids)
            + CASE WHEN _t.keep_done IS NULL THEN 0 ELSE taskyard.done_bytes(_t.number, _ids) END;
        IF _head.id > _bytes_max THEN
            _head.outcome := 6;
            RETURN;
        END IF;
        _head.created := CASE WHEN _t.rate_count IS NOT NULL
            THEN (taskyard.tokens(_t, coalesce(_now, taskyard.clock()))).next END;
    END IF;
    IF _t.has_subqueues THEN
        _keys := taskyard.lock_subqueues_of(_t.number, _ids);
    END IF;
    _places := taskyard.lock_tasks(_t.number, _ids);
END $$;

-- Whether there is a touch among these items that the tube refuses: a kind without times has no touch, except for
-- deliveries whose taker named a lease time.
CREATE OR REPLACE FUNCTION taskyard.refuses_touch(
    _number integer, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[], _sessions bytea[],
    _verbs smallint[])
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM unnest(_ids, _holders, _leases, _sessions, _verbs)
            AS i(id, holder, lease, session, verb)
        CROSS JOIN LATERAL (SELECT k AS task FROM taskyard.task k
            WHERE k.tube = _number AND k.id = i.id OFFSET 0) t
        WHERE i.verb = 3 AND NOT (t.task).explicit
            AND taskyard.is_held(
                t.task, _now, coalesce(i.holder, 0::smallint), i.lease, i.session));
END $$;

DROP FUNCTION IF EXISTS taskyard.begin_finish(taskyard.tube, bigint[], boolean, bigint);
DROP FUNCTION IF EXISTS taskyard.finish_task(taskyard.task, smallint, bigint, boolean, bigint, boolean, bigint);
DROP FUNCTION IF EXISTS taskyard.finish_task(taskyard.task, smallint, bigint, boolean, bigint, boolean, bytea, bigint);
DROP FUNCTION IF EXISTS taskyard.finish_task(taskyard.tube, taskyard.task, smallint, bigint, boolean, bytea, bigint);

-- Ends or prolongs the delivery of a task: _verb is 0 ack, 1 release, 2 bury, 3 touch. A release makes the task ready, delays it by _span, or by the retry policy if it has a random number _seed, or buries it if its attempts are used up; one that is not _counted is no attempt. With _error, a release or
-- bury is stored as a failure; that of an ack is its result. Returns the task after that, without the new failure.
CREATE OR REPLACE FUNCTION taskyard.finish_task(
    _t taskyard.tube, _task taskyard.task, _verb smallint, _span bigint, _seed bigint, _counted boolean, _error bytea, _now bigint)
RETURNS taskyard.task LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF _seed IS NOT NULL AND _t.retry_delay IS NOT NULL THEN
        _span := taskyard.retry_delay(_t, _task.attempts + 1, _seed, _task.id);
    END IF;
    IF _verb = 0 AND _t.keep_done IS NOT NULL THEN
        PERFORM taskyard.keep_leased(_t.number, _now, ARRAY[_task.id], ARRAY[_task.lease], NULL, ARRAY[_error]);
        INSERT INTO taskyard.count (tube, kept) VALUES (_t.number, 1);
        RETURN _task;
    ELSIF _verb = 0 THEN
        DELETE FROM taskyard.task t WHERE t.tube = _task.tube AND t.id = _task.id;
        IF _task.key IS NOT NULL THEN
            PERFORM taskyard.end_keys(_t.number,
                ARRAY[ROW(_task.id, _task.key, _task.unique_for, _now)::taskyard.held_key], _now);
        END IF;
        RETURN _task;
    ELSIF _verb = 1 THEN
        IF _counted THEN
            _task.previous_start := coalesce(_task.since, _task.created);
            _task.since := _now;
            _task.attempts := least(_task.attempts + 1, 4294967295);
        END IF;
        IF _counted AND _task.attempts >= coalesce(_task.attempts_max, _t.attempts_max, 4294967295) THEN
            _task.state := 4;
            _task.timer := taskyard.timer(_task.expires);
        ELSIF _t.has_times AND _span > 0 THEN
            _task.state := 2;
            _task.expires := taskyard.later(_task.expires, _span);
            _task.timer := taskyard.timer(taskyard.later(_now, _span));
        ELSE
            _task.state := 0;
            _task.timer := taskyard.timer(_task.expires);
        END IF;
    ELSIF _verb = 2 AND _task.state NOT IN (3, 4) THEN
        _task.state := 3;
        _task.timer := taskyard.timer(_task.expires);
    ELSIF _verb = 3 AND _span > 0 THEN
        _task.timer := taskyard.timer(taskyard.later(coalesce(_task.timer, 9223372036854775807), _span));
        _task.expires := taskyard.later(_task.expires, _span);
        _task.ttr := least(_task.ttr + _span, {{FOREVER}});
    ELSE
        RETURN _task;
    END IF;
    IF _verb <> 3 THEN
        _task.lease := NULL;
        _task.session := NULL;
        _task.start := NULL;
        _task.explicit := NULL;
    END IF;
    UPDATE taskyard.task t SET state = _task.state, expires = _task.expires, ttr = _task.ttr,
        timer = _task.timer, attempts = _task.attempts,
        previous_start = _task.previous_start, since = _task.since, lease = _task.lease, start = _task.start,
        explicit = _task.explicit, session = _task.session,
        failures = CASE WHEN _error IS NULL THEN t.failures ELSE taskyard.with_failure(
            t.failures, t.state, t.start, t.attempts, t.worker, _now, _error) END
        WHERE t.tube = _task.tube AND t.id = _task.id;
    RETURN _task;
END $$;

-- What is to be counted for that: 0 nothing, otherwise as in the type outcome.
CREATE OR REPLACE FUNCTION taskyard.finish_event(_verb smallint, _before smallint, _after smallint, _span bigint)
RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT (CASE _verb
        WHEN 0 THEN 1
        WHEN 1 THEN CASE WHEN _after = 4 THEN 3 ELSE 2 END
        WHEN 2 THEN CASE WHEN _before IN (3, 4) THEN 0 ELSE 4 END
        ELSE CASE WHEN _span > 0 THEN 5 ELSE 0 END
    END)::smallint
$$;

-- Adds what changed in each state of a tube, from 0, to its counts.
CREATE OR REPLACE FUNCTION taskyard.add_counts(_number integer, _more bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO taskyard.count (tube, ready, passed, taken, delayed, buried)
        SELECT _number, _more[0], _more[5], _more[1], _more[2] + _more[6], _more[3] + _more[4]
        WHERE _more <> '[0:6]={0,0,0,0,0,0,0}';
END $$;

-- These items as they are after the semaphore before the tube has changed tasks.
CREATE OR REPLACE FUNCTION taskyard.show_again(_t taskyard.tube, _shown taskyard.outcome[], _now bigint)
RETURNS SETOF taskyard.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _row taskyard.outcome;
    _task taskyard.task;
BEGIN
    FOREACH _row IN ARRAY coalesce(_shown, '{}') LOOP
        SELECT k.* INTO _task FROM taskyard.task k WHERE k.tube = _t.number AND k.id = _row.id;
        IF FOUND AND _row.state = 0 AND _row.reason <> 8 THEN
            SELECT v.* INTO _row FROM
                taskyard.view_task(_row.item, _row.event, _task, _t.paused, _now, false) v;
        END IF;
        RETURN NEXT _row;
    END LOOP;
END $$;

-- Ends or prolongs deliveries one after the other: _verbs has 0 ack, 1 release, 2 bury, 3 touch, _errors the errors of those that
-- failed and the results of acks, _seeds a random number for each release whose delay the retry policy decides; _spans has their delays in a
-- tube without a policy. There is a row for each item.
CREATE OR REPLACE FUNCTION taskyard.finish_tasks(
    _tube text, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[], _sessions bytea[],
    _verbs smallint[], _spans bigint[], _counted boolean[], _show boolean, _bytes_max bigint, _errors bytea[], _seeds bigint[])
RETURNS SETOF taskyard.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _begun record;
    _head taskyard.outcome;
    _row taskyard.outcome;
    _task taskyard.task;
    _before smallint;
    -- How many more or less are in each state, from 0.
    _more bigint[] := '[0:6]={0,0,0,0,0,0,0}';
    -- Items that the semaphore may still change, so they are shown after it has.
    _moved bigint[];
    _shown taskyard.outcome[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _now := coalesce(_now, taskyard.clock());
    _begun := taskyard.begin_finish(_t, _ids, _show, _bytes_max, _now);
    _head := _begun._head;
    _head.outcome := CASE WHEN _head.outcome = 0 AND NOT _t.has_times AND 3 = ANY (_verbs)
        AND taskyard.refuses_touch(_t.number, _now, _ids, _holders, _leases, _sessions, _verbs)
        THEN 7 ELSE _head.outcome END;
    IF _head.outcome <> 0 THEN
        RETURN NEXT _head;
        RETURN;
    END IF;
    _head.timer := CASE WHEN _t.keep_done IS NOT NULL AND 0 = ANY (_verbs) THEN _now + 1000000 END;
    FOR i IN 1 .. cardinality(_ids) LOOP
        SELECT * INTO _task FROM taskyard.task t WHERE t.tube = _t.number AND t.id = _ids[i];
        -- A bury without a holder needs no delivery.
        _row := ROW(i, CASE WHEN NOT FOUND THEN 2 WHEN _holders[i] = 2 AND _verbs[i] = 2 THEN 0
            WHEN taskyard.is_held(_task, _now, coalesce(_holders[i], 0::smallint), _leases[i], _sessions[i]) THEN 0
            ELSE 1 END, 0);
        IF _row.outcome <> 0 THEN
            RETURN NEXT _row;
            CONTINUE;
        END IF;
        _before := _task.state;
        _task := taskyard.finish_task(_t, _task, _verbs[i], _spans[i], _seeds[i], _counted[i], _errors[i], _now);
        _row.event := taskyard.finish_event(_verbs[i], _before, _task.state, _spans[i]);
        _row.state := _task.state;
        _more[_before] := _more[_before] - 1;
        IF _row.event <> 1 THEN
            _more[_row.state] := _more[_row.state] + 1;
            _head.timer := CASE WHEN _row.event > 1 THEN least(_head.timer, _task.timer) ELSE _head.timer END;
        END IF;
        _moved := _moved || _ids[i];
        IF _show THEN
            SELECT v.* INTO _row FROM taskyard.view_task(i, _row.event, _task, _t.paused, _now, _verbs[i] = 0) v;
        END IF;
        IF _show AND _t.semaphore IS NOT NULL THEN
            _shown := _shown || _row;
        ELSE
            RETURN NEXT _row;
        END IF;
    END LOOP;
    PERFORM taskyard.add_counts(_t.number, _more);
    IF _t.has_subqueues THEN
        PERFORM taskyard.set_subqueue_heads(_t.number, _begun._keys);
    END IF;
    IF _t.semaphore IS NOT NULL AND _moved IS NOT NULL THEN
        _head.timer := least(_head.timer, taskyard.update_gate(_t, _moved, _now));
        RETURN QUERY SELECT * FROM taskyard.show_again(_t, _shown, _now);
    END IF;
    _head.id := taskyard.room(_t.number, _t.capacity);
    RETURN NEXT _head;
END $$;

-- The same without policies, for servers of earlier versions.
CREATE OR REPLACE FUNCTION taskyard.finish_tasks(
    _tube text, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[], _sessions bytea[],
    _verbs smallint[], _spans bigint[], _counted boolean[], _show boolean, _bytes_max bigint, _errors bytea[])
RETURNS SETOF taskyard.outcome LANGUAGE sql VOLATILE AS $$
    SELECT * FROM taskyard.finish_tasks(_tube, _now, _ids, _holders, _leases, _sessions, _verbs, _spans,
        _counted, _show, _bytes_max, _errors, NULL)
$$;

-- The same without errors.
CREATE OR REPLACE FUNCTION taskyard.finish_tasks(
    _tube text, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[], _sessions bytea[],
    _verbs smallint[], _spans bigint[], _counted boolean[], _show boolean, _bytes_max bigint)
RETURNS SETOF taskyard.outcome LANGUAGE sql VOLATILE AS $$
    SELECT * FROM taskyard.finish_tasks(_tube, _now, _ids, _holders, _leases, _sessions, _verbs, _spans,
        _counted, _show, _bytes_max, NULL, NULL)
$$;

-- Deletes the locked tasks at these places and counts that.
CREATE OR REPLACE FUNCTION taskyard.delete_places(_number integer, _places tid[], _now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _held taskyard.held_key[];
BEGIN
    WITH gone AS (
        DELETE FROM taskyard.task t WHERE t.ctid = ANY (_places)
        RETURNING t.state, t.id, t.key, t.unique_for, t.expires),
    counted AS (
        INSERT INTO taskyard.count (tube, ready, passed, taken, delayed, buried)
        SELECT _number, -count(*) FILTER (WHERE g.state = 0),
            -count(*) FILTER (WHERE g.state = 5), -count(*) FILTER (WHERE g.state = 1),
            -count(*) FILTER (WHERE g.state IN (2, 6)), -count(*) FILTER (WHERE g.state IN (3, 4))
        FROM gone g HAVING count(*) > 0)
    -- A task that was not taken has ended when its time to live was over.
    SELECT array_agg(ROW(g.id, g.key, g.unique_for,
            CASE WHEN g.state = 1 THEN _now ELSE least(g.expires, _now) END)::taskyard.held_key)
        INTO _held FROM gone g WHERE g.key IS NOT NULL;
    IF _held IS NOT NULL THEN
        PERFORM taskyard.end_keys(_number, _held, _now);
    END IF;
END $$;

-- Deletes tasks, also taken and done ones. Besides item 0 there is a row for each task that existed, in any order; its item is
-- the first place of its id.
CREATE OR REPLACE FUNCTION taskyard.remove_tasks(
    _tube text, _now bigint, _ids bigint[], _show boolean, _bytes_max bigint)
RETURNS SETOF taskyard.shown LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _head taskyard.shown;
    _begun record;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _begun := taskyard.begin_finish(_t, _ids, _show, _bytes_max, _now);
    _head := _begun._head;
    IF _head.outcome <> 0 THEN
        RETURN NEXT _head;
        RETURN;
    END IF;
    _now := coalesce(_now, taskyard.clock());
    RETURN QUERY SELECT v.item, v.outcome, v.event, v.id, v.state, v.pri, v.created, v.expires, v.ttr,
            v.timer, v.attempts, v.previous_start, v.lease, v.start, v.session, v.subqueue, v.reason,
            CASE WHEN _show THEN v.meta END, CASE WHEN _show THEN v.payload END,
            NULL::float8, NULL::bigint, NULL::text, NULL::bytea, NULL::bytea, NULL::text, NULL::bigint
        FROM (SELECT n.id, min(n.item) AS item
            FROM unnest(_ids) WITH ORDINALITY AS n(id, item) GROUP BY n.id) i
        CROSS JOIN LATERAL (SELECT k AS task FROM taskyard.task k
            WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t
        CROSS JOIN LATERAL
            taskyard.view_task(i.item::integer, 0::smallint, t.task, _t.paused, _now, true) v;
    PERFORM taskyard.delete_places(_t.number, _begun._places, _now);
    IF _t.keep_done IS NOT NULL THEN
        RETURN QUERY SELECT * FROM taskyard.delete_done(_t, _now, _ids, _show);
    END IF;
    IF _t.has_subqueues THEN
        PERFORM taskyard.set_subqueue_heads(_t.number, _begun._keys);
    END IF;
    IF _t.semaphore IS NOT NULL THEN
        _head.timer := taskyard.update_gate(_t, _ids, _now);
    END IF;
    _head.id := taskyard.room(_t.number, _t.capacity);
    RETURN NEXT _head;
END $$;

-- The same for servers of earlier versions.
CREATE OR REPLACE FUNCTION taskyard.delete_tasks(
    _tube text, _now bigint, _ids bigint[], _show boolean, _bytes_max bigint)
RETURNS SETOF taskyard.outcome LANGUAGE sql VOLATILE AS $$
    SELECT r.item, r.outcome, r.event, r.id, r.state, r.pri, r.created, r.expires, r.ttr, r.timer, r.attempts,
        r.previous_start, r.lease, r.start, r.session, r.subqueue, r.reason, r.meta, r.payload
    FROM taskyard.remove_tasks(_tube, _now, _ids, _show, _bytes_max) r
$$;
