-- Takes tasks.

-- Locks a session against its end, which then waits and also gives back what is taken now. Returns whether it is alive.
CREATE OR REPLACE FUNCTION taskyard.hold_session(_session bytea, _now bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM taskyard.session s WHERE s.id = _session FOR KEY SHARE;
    RETURN taskyard.is_alive(_session, _now);
END $$;

-- Of the locked tasks at these places, in this order: those that have not expired and fit into _bytes_max bytes, at least
-- one if _is_first. Expired ones are marked and counted as passed over; in sub-queues (_keyed) the first of them ends the
-- search, since the next task of its sub-queue may come before the other heads. cut says that the rest did not fit.
CREATE OR REPLACE FUNCTION taskyard.fit_answer(
    _number integer, _found tid[], _now bigint, _bytes_max bigint, _is_first boolean, _keyed boolean,
    OUT places tid[], OUT passed tid[], OUT bytes bigint, OUT cut boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _h record;
BEGIN
    places := '{}';
    bytes := 0;
    cut := false;
    FOR _h IN SELECT f.place, t.expires <= _now AS expired, t.bytes
        FROM unnest(_found) WITH ORDINALITY AS f(place, n)
        CROSS JOIN LATERAL (SELECT k.expires,
                octet_length(k.payload) + coalesce(octet_length(k.meta), 0) AS bytes
            FROM taskyard.task k WHERE k.ctid = f.place OFFSET 0) t
        ORDER BY f.n
    LOOP
        IF _h.expired THEN
            passed := passed || _h.place;
            EXIT WHEN _keyed;
            CONTINUE;
        END IF;
        bytes := bytes + _h.bytes;
        IF bytes > _bytes_max AND (NOT _is_first OR cardinality(places) > 0) THEN
            cut := true;
            EXIT;
        END IF;
        places := places || _h.place;
    END LOOP;
    IF passed IS NOT NULL THEN
        UPDATE taskyard.task t SET state = 5 WHERE t.ctid = ANY (passed);
        INSERT INTO taskyard.count (tube, ready, passed)
            VALUES (_number, -cardinality(fit_answer.passed), cardinality(fit_answer.passed));
    END IF;
END $$;

-- Locks the first ready tasks of a tube, at most _most, at or behind a place in its order. Without a place, and if there is
-- none behind it and _may_sweep, the whole tube is searched; swept is how long that took, in microseconds. Returns where
-- those lie that can be delivered (NULL: none was found) and those that have expired, and the place of the last one.
CREATE OR REPLACE FUNCTION taskyard.find_ready(
    _number integer, _from_pri bigint, _from_id bigint, _may_sweep boolean, _most bigint, _now bigint,
    _bytes_max bigint, _is_first boolean, OUT places tid[], OUT passed tid[], OUT bytes bigint, OUT cut boolean,
    OUT last_pri bigint, OUT last_id bigint, OUT swept bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _ids bigint[];
    _pris bigint[];
    _expired boolean;
    _begun bigint;
    _fit record;
BEGIN
    LOOP
        _begun := CASE WHEN _from_id IS NULL THEN taskyard.clock() END;
        _from_pri := CASE WHEN _from_id IS NULL THEN -9223372036854775808 ELSE _from_pri END;
        SELECT array_agg(h.id), array_agg(h.place), array_agg(h.pri), bool_or(h.expires <= _now), sum(h.bytes)
            INTO _ids, places, _pris, _expired, bytes FROM (
                SELECT t.id, t.ctid AS place, t.pri, t.expires,
                    octet_length(t.payload) + coalesce(octet_length(t.meta), 0) AS bytes
                FROM taskyard.task t WHERE t.tube = _number AND t.state = 0
                    AND (t.pri, t.id) >= (_from_pri, coalesce(_from_id, 0))
                ORDER BY t.pri, t.id LIMIT _most FOR UPDATE SKIP LOCKED) h;
        swept := taskyard.clock() - _begun;
        EXIT WHEN places IS NOT NULL OR _from_id IS NULL OR NOT _may_sweep;
        _from_id := NULL;
    END LOOP;
    IF places IS NULL THEN
        RETURN;
    END IF;
    last_pri := _pris[cardinality(_pris)];
    last_id := _ids[cardinality(_ids)];
    IF _expired OR bytes > _bytes_max THEN
        _fit := taskyard.fit_answer(_number, places, _now, _bytes_max, _is_first, false);
        places := _fit.places;
        passed := _fit.passed;
        bytes := _fit.bytes;
        cut := _fit.cut;
    END IF;
END $$;

-- The same in a tube with sub-queues: locks the first sub-queues that have a task to take, and takes their heads away.
CREATE OR REPLACE FUNCTION taskyard.find_heads(
    _number integer, _most bigint, _now bigint, _bytes_max bigint, _is_first boolean,
    OUT places tid[], OUT passed tid[], OUT bytes bigint, OUT cut boolean,
    OUT last_pri bigint, OUT last_id bigint, OUT swept bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _ids bigint[];
    _pris bigint[];
    _keys text[];
    _rows tid[];
    _expired boolean;
    _fit record;
BEGIN
    SELECT array_agg(h.head_id), array_agg(h.head_pri), array_agg(h.key), array_agg(h.place)
        INTO _ids, _pris, _keys, _rows FROM (
            SELECT s.head_id, s.head_pri, s.key, s.ctid AS place FROM taskyard.subqueue s
            WHERE s.tube = _number AND s.head_id IS NOT NULL
            ORDER BY s.head_pri, s.head_id LIMIT _most FOR UPDATE SKIP LOCKED) h;
    IF _ids IS NULL THEN
        RETURN;
    END IF;
    last_pri := _pris[cardinality(_pris)];
    last_id := _ids[cardinality(_ids)];
    -- Read after its sub-queue was locked: so the task still is the head.
    SELECT array_agg(h.place), bool_or(h.expires <= _now), sum(h.bytes) INTO places, _expired, bytes
        FROM unnest(_ids) AS f(id)
        CROSS JOIN LATERAL (
            SELECT t.ctid AS place, t.expires,
                octet_length(t.payload) + coalesce(octet_length(t.meta), 0) AS bytes
            FROM taskyard.task t WHERE t.tube = _number AND t.id = f.id OFFSET 0) h;
    IF _expired OR bytes > _bytes_max THEN
        _fit := taskyard.fit_answer(_number, places, _now, _bytes_max, _is_first, true);
        places := _fit.places;
        passed := _fit.passed;
        bytes := _fit.bytes;
        cut := _fit.cut;
        _keys := _keys[cardinality(places) + 1:cardinality(places) + 1];
        _rows := _rows[1:cardinality(places)];
    END IF;
    UPDATE taskyard.subqueue s SET head_pri = NULL, head_id = NULL WHERE s.ctid = ANY (_rows);
    IF passed IS NOT NULL THEN
        PERFORM taskyard.set_subqueue_heads(_number, _keys);
    END IF;
END $$;

-- Whether a tube has a task to take behind this place in its order. Those before it are locked by this transaction or by
-- another one.
CREATE OR REPLACE FUNCTION taskyard.has_ready_after(
    _number integer, _has_subqueues boolean, _pri bigint, _id bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF _has_subqueues THEN
        RETURN EXISTS (SELECT 1 FROM taskyard.subqueue s
            WHERE s.tube = _number AND s.head_id IS NOT NULL AND (s.head_pri, s.head_id) > (_pri, _id));
    END IF;
    RETURN EXISTS (SELECT 1 FROM taskyard.task t
        WHERE t.tube = _number AND t.state = 0 AND (t.pri, t.id) > (_pri, _id));
END $$;

-- Locks the semaphore of a tube. Returns whether no task can be delivered: the tube is paused, or the semaphore does not exist.
CREATE OR REPLACE FUNCTION taskyard.lock_for_take(_t taskyard.tube) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM taskyard.lock_gate(_t.semaphore);
    RETURN _t.paused OR NOT EXISTS (SELECT 1 FROM taskyard.semaphore s WHERE s.id = _t.semaphore);
END $$;

-- Delivers up to _count tasks, to the caller's session if it names one, for the time of _lease or else each task's ttr. The
-- worker has the name _workers[1]; with several names the tasks are for one worker each, in this order, NULL for one without a name. A
-- row with status 0 is a delivery; the others are 1 no such tube, 2 the session is unknown, 3 there is more than was asked
-- for or fits into one answer, 4 everything was looked at, 5 the rate limit allows no more until the moment in the column timer. Rows are
-- in no order: that of a queue is (pri, id).
--
-- A caller that knows of no ready task before a place may pass the place: then what lies before it is only looked at if
-- there is not enough behind it and _may_sweep. How long that took, in microseconds, is then the column created of a row
-- with status 4, and its pri and id are those that the next put will have at least. place is where the delivery lies in the
-- table: an ack that names it finds it at once. since is since when the task was ready.
--
-- Without the semaphore of its tube no task is delivered. With it tasks become ready in any order: then no place is used.
CREATE OR REPLACE FUNCTION taskyard.deliver_with_rate(
    _tube text, _now bigint, _count bigint, _session bytea, _lease bigint, _bytes_max bigint,
    _from_pri bigint, _from_id bigint, _may_sweep boolean, _workers text[])
RETURNS TABLE (status smallint, number integer, id bigint, pri bigint, created bigint, expires bigint, ttr bigint,
    attempts bigint, previous_start bigint, subqueue text, start bigint, lease bigint, timer bigint, meta bytea,
    payload bytea, place tid, since bigint, worker text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _given bigint := 0;
    _bytes bigint := 0;
    _cut boolean := false;
    _swept bigint;
    _last_pri bigint;
    _last_id bigint;
    _found record;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _now := coalesce(_now, taskyard.clock());
    IF _t.semaphore IS NOT NULL THEN
        _t.paused := taskyard.lock_for_take(_t);
        _from_id := NULL;
    END IF;
    IF _t.number IS NULL OR _session IS NOT NULL AND NOT taskyard.hold_session(_session, _now) THEN
        status := CASE WHEN _t.number IS NULL THEN 1 ELSE 2 END;
        RETURN NEXT;
        RETURN;
    END IF;
    _count := least(_count, CASE WHEN _t.rate_count IS NOT NULL THEN taskyard.lock_bucket(_t, _now) END);
    WHILE _given < _count AND NOT _cut AND NOT _t.paused LOOP
        IF _t.has_subqueues THEN
            _found := taskyard.find_heads(_t.number, _count - _given, _now, _bytes_max - _bytes, _given = 0);
        ELSE
            _found := taskyard.find_ready(_t.number, _from_pri, CASE WHEN _swept IS NULL THEN _from_id END, _may_sweep, _count - _given,
                _now, _bytes_max - _bytes, _given = 0);
        END IF;
        _swept := coalesce(_swept, _found.swept);
        EXIT WHEN _found.places IS NULL;
        RETURN QUERY
            UPDATE taskyard.task t SET state = 1, lease = nextval('taskyard.lease'), start = _now, session = _session,
                explicit = _lease IS NOT NULL, worker = _workers[CASE WHEN cardinality(_workers) > 1
                    THEN _given + array_position(_found.places, t.ctid) ELSE 1 END], timer = taskyard.timer(least(taskyard.later(
                    _now, coalesce(_lease, t.ttr)), CASE WHEN _t.ttl_kills_taken THEN t.expires END))
            WHERE t.ctid = ANY (_found.places)
            RETURNING 0::smallint, _t.number, t.id, t.pri, t.created, t.expires, t.ttr, t.attempts, t.previous_start,
                t.subqueue::text, t.start, t.lease, t.timer, t.meta, t.payload, t.ctid, coalesce(t.since, t.created), t.worker;
        _given := _given + cardinality(_found.places);
        _bytes := _bytes + _found.bytes;
        _cut := coalesce(_found.cut, false);
        _last_pri := _found.last_pri;
        _last_id := _found.last_id;
        EXIT WHEN _found.passed IS NULL AND (_from_id IS NULL OR _swept IS NOT NULL OR _t.has_subqueues);
    END LOOP;
    IF _given > 0 THEN
        INSERT INTO taskyard.count (tube, ready, taken) VALUES (_t.number, -_given, _given);
    END IF;
    timer := CASE WHEN _t.rate_count IS NOT NULL THEN taskyard.spend_tokens(_t, _given, _now) END;
    IF timer IS NOT NULL OR _cut OR _given >= _count AND taskyard.has_ready_after(_t.number, _t.has_subqueues, _last_pri, _last_id) THEN
        status := CASE WHEN timer IS NULL THEN 3 ELSE 5 END;
        RETURN NEXT;
    END IF;
    IF _swept IS NOT NULL THEN
        status := 4;
        pri := _t.pri;
        id := coalesce(pg_sequence_last_value(_t.ids) + 1, 0);
        created := _swept;
        RETURN NEXT;
    END IF;
END $$;

-- The same without the row with status 5, for servers of earlier versions, which do not know it.
CREATE OR REPLACE FUNCTION taskyard.deliver_to_workers(
    _tube text, _now bigint, _count bigint, _session bytea, _lease bigint, _bytes_max bigint,
    _from_pri bigint, _from_id bigint, _may_sweep boolean, _workers text[])
RETURNS TABLE (status smallint, number integer, id bigint, pri bigint, created bigint, expires bigint, ttr bigint,
    attempts bigint, previous_start bigint, subqueue text, start bigint, lease bigint, timer bigint, meta bytea,
    payload bytea, place tid, since bigint, worker text)
LANGUAGE sql VOLATILE AS $$
    SELECT d.* FROM taskyard.deliver_with_rate(_tube, _now, _count, _session, _lease, _bytes_max, _from_pri,
        _from_id, _may_sweep, _workers) d WHERE d.status <> 5
$$;

-- The same without the names of workers, for servers of still earlier versions.
CREATE OR REPLACE FUNCTION taskyard.deliver_ready_tasks(
    _tube text, _now bigint, _count bigint, _session bytea, _lease bigint, _bytes_max bigint,
    _from_pri bigint, _from_id bigint, _may_sweep boolean)
RETURNS TABLE (status smallint, number integer, id bigint, pri bigint, created bigint, expires bigint, ttr bigint,
    attempts bigint, previous_start bigint, subqueue text, start bigint, lease bigint, timer bigint, meta bytea,
    payload bytea, place tid, since bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT d.status, d.number, d.id, d.pri, d.created, d.expires, d.ttr, d.attempts,
        d.previous_start, d.subqueue, d.start, d.lease, d.timer, d.meta, d.payload, d.place, d.since
    FROM taskyard.deliver_to_workers(_tube, _now, _count, _session, _lease, _bytes_max, _from_pri,
        _from_id, _may_sweep, NULL) d
$$;

-- The same for servers of the versions before them.
CREATE OR REPLACE FUNCTION taskyard.deliver_tasks(
    _tube text, _now bigint, _count bigint, _session bytea, _lease bigint, _bytes_max bigint,
    _from_pri bigint, _from_id bigint, _may_sweep boolean)
RETURNS TABLE (
    status smallint, number integer, id bigint, pri bigint, created bigint, expires bigint,
    ttr bigint, attempts bigint, previous_start bigint, subqueue text, start bigint, lease bigint,
    timer bigint, meta bytea, payload bytea, place tid)
LANGUAGE sql VOLATILE AS $$
    SELECT d.status, d.number, d.id, d.pri, d.created, d.expires, d.ttr, d.attempts,
        d.previous_start, d.subqueue, d.start, d.lease, d.timer, d.meta, d.payload, d.place
    FROM taskyard.deliver_to_workers(_tube, _now, _count, _session, _lease, _bytes_max, _from_pri,
        _from_id, _may_sweep, NULL) d
$$;

-- The same for the first servers.
CREATE OR REPLACE FUNCTION taskyard.take_tasks(
    _tube text, _now bigint, _count bigint, _session bytea, _lease bigint, _bytes_max bigint,
    _from_pri bigint, _from_id bigint, _may_sweep boolean)
RETURNS TABLE (
    status smallint, number integer, id bigint, pri bigint, created bigint, expires bigint,
    ttr bigint, attempts bigint, previous_start bigint, subqueue text, start bigint, lease bigint,
    timer bigint, meta bytea, payload bytea)
LANGUAGE sql VOLATILE AS $$
    SELECT d.status, d.number, d.id, d.pri, d.created, d.expires, d.ttr, d.attempts,
        d.previous_start, d.subqueue, d.start, d.lease, d.timer, d.meta, d.payload
    FROM taskyard.deliver_to_workers(_tube, _now, _count, _session, _lease, _bytes_max, _from_pri,
        _from_id, _may_sweep, NULL) d
$$;
