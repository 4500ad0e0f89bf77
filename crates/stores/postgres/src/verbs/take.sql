-- How tasks go out.

-- Delivers up to _count tasks, to the caller's session if it names one, for the time of _lease or else
-- each task's ttr. A row with status 0 is a delivery; the others are 1 no such tube, 2 the session is unknown, 3
-- there is more than was asked for or fits into one answer, 4 everything was looked at. Rows are in no order: that of a queue is
-- (pri, id).
--
-- Where the caller knows of nothing ready before a place, it may say so: then what lies before it is only
-- looked at if there is not enough behind it and _may_sweep. How long that took, in microseconds, is then the
-- column created of a row with status 4, and its pri and id are those that the next put will have at least.
-- place is where the delivery lies in the table: an ack that names it finds it at once. since is since when the task was ready.
CREATE OR REPLACE FUNCTION taskyard.deliver_ready_tasks(
    _tube text, _now bigint, _count bigint, _session bytea, _lease bigint, _bytes_max bigint,
    _from_pri bigint, _from_id bigint, _may_sweep boolean)
RETURNS TABLE (
    status smallint, number integer, id bigint, pri bigint, created bigint, expires bigint,
    ttr bigint, attempts bigint, previous_start bigint, subqueue text, start bigint, lease bigint,
    timer bigint, meta bytea, payload bytea, place tid, since bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _left bigint := _count;
    _given bigint := 0;
    _skipped bigint := 0;
    _bytes bigint := 0;
    _cut boolean := false;
    _found bigint[];
    _places tid[];
    _pris bigint[];
    _expired boolean[];
    _sizes bigint[];
    _any boolean;
    _sum bigint;
    _given_places tid[];
    _passed tid[];
    _keys text[];
    _rows tid[];
    _last_pri bigint;
    _last_id bigint;
    _hinted boolean := _from_id IS NOT NULL;
    _begun bigint;
    _swept bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    IF NOT FOUND THEN
        status := 1;
        RETURN NEXT;
        RETURN;
    END IF;
    _now := coalesce(_now, taskyard.clock());
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
        -- A gate whose semaphore is lost stays shut.
        _t.paused := _t.paused
            OR NOT EXISTS (SELECT 1 FROM taskyard.semaphore s WHERE s.id = _t.semaphore);
        -- Its tasks become ready in any order, so that no hint holds.
        _from_pri := NULL;
        _from_id := NULL;
        _hinted := false;
    END IF;
    _from_pri := coalesce(_from_pri, -9223372036854775808);
    _from_id := coalesce(_from_id, 0);
    -- Who ends the session meanwhile waits, and then gives back what this takes as well.
    PERFORM 1 FROM taskyard.session s WHERE s.id = _session FOR KEY SHARE;
    IF _session IS NOT NULL AND NOT taskyard.is_alive(_session, _now) THEN
        status := 2;
        RETURN NEXT;
        RETURN;
    END IF;
    WHILE _left > 0 AND NOT _t.paused LOOP
        IF _t.has_subqueues THEN
            _hinted := false;
            SELECT array_agg(h.head_id), array_agg(h.head_pri), array_agg(h.key), array_agg(h.place)
                INTO _found, _pris, _keys, _rows FROM (
                    SELECT s.head_id, s.head_pri, s.key, s.ctid AS place FROM taskyard.subqueue s
                    WHERE s.tube = _t.number AND s.head_id IS NOT NULL
                    ORDER BY s.head_pri, s.head_id LIMIT _left FOR UPDATE SKIP LOCKED) h;
            -- Read after its sub-queue was locked, a head is what it seems to be.
            SELECT array_agg(h.place), array_agg(h.expires <= _now), array_agg(h.bytes),
                bool_or(h.expires <= _now), sum(h.bytes)
                INTO _places, _expired, _sizes, _any, _sum
                FROM unnest(_found) AS f(id)
                CROSS JOIN LATERAL (
                    SELECT t.ctid AS place, t.expires,
                        octet_length(t.payload) + coalesce(octet_length(t.meta), 0) AS bytes
                    FROM taskyard.task t WHERE t.tube = _t.number AND t.id = f.id OFFSET 0) h;
        ELSE
            _begun := CASE WHEN NOT _hinted AND _swept IS NULL THEN taskyard.clock() END;
            SELECT array_agg(h.id), array_agg(h.place), array_agg(h.pri), array_agg(h.expires <= _now),
                array_agg(h.bytes), bool_or(h.expires <= _now), sum(h.bytes)
                INTO _found, _places, _pris, _expired, _sizes, _any, _sum FROM (
                    SELECT t.id, t.ctid AS place, t.pri, t.expires,
                        octet_length(t.payload) + coalesce(octet_length(t.meta), 0) AS bytes
                    FROM taskyard.task t WHERE t.tube = _t.number AND t.state = 0
                        AND (t.pri, t.id) >= (_from_pri, _from_id)
                    ORDER BY t.pri, t.id LIMIT _left FOR UPDATE SKIP LOCKED) h;
            IF _begun IS NOT NULL THEN
                _swept := taskyard.clock() - _begun;
            END IF;
        END IF;
        IF _found IS NULL THEN
            EXIT WHEN NOT _hinted OR NOT _may_sweep;
            _hinted := false;
            _from_pri := -9223372036854775808;
            _from_id := 0;
            CONTINUE;
        END IF;
        _given_places := _places;
        _passed := NULL;
        IF _any OR _bytes + _sum > _bytes_max THEN
            -- Without the expired, and only what fits into one answer.
            _given_places := ARRAY[]::tid[];
            FOR i IN 1 .. cardinality(_found) LOOP
                IF _expired[i] THEN
                    _passed := _passed || _places[i];
                    -- The next of its sub-queue may come before the other heads.
                    EXIT WHEN _t.has_subqueues;
                    CONTINUE;
                END IF;
                _bytes := _bytes + _sizes[i];
                IF _bytes > _bytes_max AND _count - _left + cardinality(_given_places) > 0 THEN
                    _left := cardinality(_given_places);
                    _cut := true;
                    EXIT;
                END IF;
                _given_places := _given_places || _places[i];
            END LOOP;
        ELSE
            _bytes := _bytes + _sum;
        END IF;
        RETURN QUERY
            UPDATE taskyard.task t SET
                state = 1,
                lease = nextval('taskyard.lease'),
                start = _now,
                session = _session,
                explicit = _lease IS NOT NULL,
                timer = taskyard.timer(least(
                    taskyard.later(_now, coalesce(_lease, t.ttr)),
                    CASE WHEN _t.ttl_kills_taken THEN t.expires END))
            WHERE t.ctid = ANY (_given_places)
            RETURNING 0::smallint, _t.number, t.id, t.pri, t.created, t.expires, t.ttr, t.attempts,
                t.previous_start, t.subqueue::text, t.start, t.lease, t.timer, t.meta, t.payload,
                t.ctid, coalesce(t.since, t.created);
        IF _t.has_subqueues THEN
            UPDATE taskyard.subqueue s SET head_pri = NULL, head_id = NULL
                WHERE s.ctid = ANY (_rows[1:cardinality(_given_places)]);
        END IF;
        _left := _left - cardinality(_given_places);
        _given := _given + cardinality(_given_places);
        _last_pri := _pris[cardinality(_found)];
        _last_id := _found[cardinality(_found)];
        EXIT WHEN _passed IS NULL AND NOT _hinted;
        CONTINUE WHEN _passed IS NULL;
        UPDATE taskyard.task t SET state = 5 WHERE t.ctid = ANY (_passed);
        _skipped := _skipped + cardinality(_passed);
        IF _t.has_subqueues THEN
            PERFORM taskyard.settle_subqueues(_t.number, _keys[cardinality(_given_places) + 1:cardinality(_given_places) + 1]);
        END IF;
    END LOOP;
    IF _given + _skipped > 0 THEN
        INSERT INTO taskyard.count (tube, ready, passed, taken)
            VALUES (_t.number, -_given - _skipped, _skipped, _given);
    END IF;
    IF _cut THEN
        status := 3;
        RETURN NEXT;
    ELSIF _left = 0 AND _last_id IS NOT NULL THEN
        -- Behind the last one: those before it are this transaction's own, or another's.
        IF _t.has_subqueues THEN
            PERFORM 1 FROM taskyard.subqueue s
                WHERE s.tube = _t.number AND s.head_id IS NOT NULL
                    AND (s.head_pri, s.head_id) > (_last_pri, _last_id) LIMIT 1;
        ELSE
            PERFORM 1 FROM taskyard.task t
                WHERE t.tube = _t.number AND t.state = 0 AND (t.pri, t.id) > (_last_pri, _last_id)
                LIMIT 1;
        END IF;
        IF FOUND THEN
            status := 3;
            RETURN NEXT;
        END IF;
    END IF;
    IF _swept IS NOT NULL THEN
        status := 4;
        pri := _t.pri;
        id := coalesce(pg_sequence_last_value(_t.ids) + 1, 0);
        created := _swept;
        RETURN NEXT;
    END IF;
END $$;

-- The same as servers of earlier versions know it.
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
    FROM taskyard.deliver_ready_tasks(_tube, _now, _count, _session, _lease, _bytes_max, _from_pri,
        _from_id, _may_sweep) d
$$;

-- The same as servers of still earlier versions know it.
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
    FROM taskyard.deliver_ready_tasks(_tube, _now, _count, _session, _lease, _bytes_max, _from_pri,
        _from_id, _may_sweep) d
$$;
