-- Kicks buried tasks.

-- Makes those of these tasks that are buried ready, with _reset_attempts as if they had never been taken. The caller has locked the
-- semaphore. Returns their ids in the order given, the ids of the tasks that are not buried, and the next deadline that was set.
CREATE OR REPLACE FUNCTION taskyard.kick_buried(
    _t taskyard.tube, _ids bigint[], _reset_attempts boolean, _now bigint,
    OUT kicked bigint[], OUT others bigint[], OUT wakeup bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _places tid[];
    _keys text[];
BEGIN
    IF _t.has_subqueues THEN
        _keys := taskyard.lock_subqueues_of(_t.number, _ids);
    END IF;
    PERFORM taskyard.lock_tasks(_t.number, _ids);
    SELECT array_agg(i.id ORDER BY i.n) FILTER (WHERE t.state IN (3, 4)),
        array_agg(i.id) FILTER (WHERE t.state NOT IN (3, 4)),
        array_agg(t.place) FILTER (WHERE t.state IN (3, 4))
        INTO kicked, others, _places
        FROM (SELECT u.id, min(u.n) AS n FROM unnest(_ids) WITH ORDINALITY AS u(id, n) GROUP BY u.id) i
        CROSS JOIN LATERAL (SELECT k.ctid AS place, k.state FROM taskyard.task k
            WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t;
    IF kicked IS NOT NULL THEN
        UPDATE taskyard.task t SET state = 0, since = coalesce(_now, taskyard.clock()),
            attempts = CASE WHEN _reset_attempts THEN 0 ELSE t.attempts END
            WHERE t.ctid = ANY (_places);
        INSERT INTO taskyard.count (tube, ready, buried)
            VALUES (_t.number, cardinality(kicked), -cardinality(kicked));
    END IF;
    IF _t.has_subqueues THEN
        PERFORM taskyard.set_subqueue_heads(_t.number, _keys);
    END IF;
    IF _t.semaphore IS NOT NULL AND kicked IS NOT NULL THEN
        wakeup := taskyard.update_gate(_t, kicked, _now);
    END IF;
END $$;

-- Makes buried tasks ready, lowest (pri, id) first. status: 0 done, 1 no such tube.
CREATE OR REPLACE FUNCTION taskyard.kick_tasks(
    _tube text, _count bigint, _now bigint, OUT status smallint, OUT number integer,
    OUT kicked bigint, OUT wakeup bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _ids bigint[];
    _done record;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    status := CASE WHEN _t.number IS NULL THEN 1 ELSE 0 END;
    IF status <> 0 THEN
        RETURN;
    END IF;
    number := _t.number;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
    END IF;
    _ids := ARRAY(SELECT t.id FROM taskyard.task t
        WHERE t.tube = _t.number AND t.state IN (3, 4) ORDER BY t.pri, t.id LIMIT _count);
    _done := taskyard.kick_buried(_t, _ids, false, _now);
    kicked := coalesce(cardinality(_done.kicked), 0);
    wakeup := _done.wakeup;
END $$;

-- Makes these tasks ready, as far as they are buried. Returns the ids of those that were and of the other tasks that exist. status as
-- above.
CREATE OR REPLACE FUNCTION taskyard.kick_these(
    _tube text, _now bigint, _ids bigint[], _reset_attempts boolean,
    OUT status smallint, OUT number integer, OUT kicked bigint[], OUT others bigint[], OUT wakeup bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _done record;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    status := CASE WHEN _t.number IS NULL THEN 1 ELSE 0 END;
    IF status <> 0 THEN
        RETURN;
    END IF;
    number := _t.number;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
    END IF;
    _done := taskyard.kick_buried(_t, _ids, _reset_attempts, _now);
    kicked := _done.kicked;
    others := _done.others;
    wakeup := _done.wakeup;
END $$;

-- For servers of versions before semaphores.
CREATE OR REPLACE FUNCTION taskyard.kick_tasks(
    _tube text, _count bigint, OUT status smallint, OUT number integer, OUT kicked bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT k.status, k.number, k.kicked FROM taskyard.kick_tasks(_tube, _count, NULL) k
$$;
