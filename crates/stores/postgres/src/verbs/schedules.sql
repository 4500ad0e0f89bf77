-- Schedules. The store knows no rule of time: servers compute the next time, and a fire is applied only if the time before is still the
-- expected one, in one step with its puts. A fire locks the row of its schedule before its tube.

-- Creates a schedule or replaces it; a replaced one keeps its counters. status: 0 done, 1 no such tube, 2 it exists and _only_new, 3 too
-- many schedules, 4 it would be done, but the caller must _refuse it. With NULL for _only_new it is imported: it must be new, and its tube
-- may be missing. With NULL for _paused a new one is not paused, and a replaced one stays as it is.
CREATE OR REPLACE FUNCTION taskyard.set_schedule(
    _name text, _tube text, _timing text, _catch_up smallint, _overlap smallint, _until bigint, _paused boolean,
    _next bigint, _payload bytea, _meta bytea, _pri bigint, _ttl bigint, _ttr bigint, _delay bigint, _at bigint,
    _subqueue text, _semaphore_priority float8, _attempts_max bigint, _key text, _unique_for bigint, _replaces boolean,
    _only_new boolean, _refuse boolean, _schedules_max bigint, OUT status smallint, OUT is_new boolean)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- One at a time, so that the number of schedules is exact.
    PERFORM pg_advisory_xact_lock(1952543590);
    is_new := NOT EXISTS (SELECT 1 FROM taskyard.schedule s WHERE s.name = _name);
    status := CASE
        WHEN coalesce(_only_new, true) AND NOT is_new THEN 2
        WHEN _refuse THEN 4
        WHEN _only_new IS NOT NULL AND NOT EXISTS (SELECT 1 FROM taskyard.tube t WHERE t.name = _tube) THEN 1
        WHEN is_new AND (SELECT count(*) FROM taskyard.schedule) >= _schedules_max THEN 3
        ELSE 0
    END;
    IF status <> 0 THEN
        RETURN;
    END IF;
    INSERT INTO taskyard.schedule AS s (name, tube, timing, catch_up, overlap, until, paused, next, fired, skipped,
            payload, meta, pri, ttl, ttr, delay, at, subqueue, semaphore_priority, attempts_max, key, unique_for, replaces)
        VALUES (_name, _tube, _timing, _catch_up, _overlap, _until, coalesce(_paused, false), _next, 0, 0, _payload, _meta, _pri, _ttl, _ttr,
            _delay, _at, _subqueue, _semaphore_priority, _attempts_max, _key, _unique_for, _replaces)
        ON CONFLICT (name) DO UPDATE SET tube = excluded.tube, timing = excluded.timing, catch_up = excluded.catch_up,
            overlap = excluded.overlap, until = excluded.until, paused = coalesce(_paused, s.paused), next = excluded.next,
            payload = excluded.payload, meta = excluded.meta, pri = excluded.pri, ttl = excluded.ttl, ttr = excluded.ttr,
            delay = excluded.delay, at = excluded.at, subqueue = excluded.subqueue,
            semaphore_priority = excluded.semaphore_priority, attempts_max = excluded.attempts_max, key = excluded.key,
            unique_for = excluded.unique_for, replaces = excluded.replaces;
END $$;

-- Completes the import of a schedule, unless its status says that it was refused.
CREATE OR REPLACE FUNCTION taskyard.end_import_schedule(
    _name text, _status smallint, _last bigint, _fired bigint, _skipped bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF _status <> 0 THEN
        RAISE EXCEPTION 'cannot import schedule ''%'': it exists, or there are too many', _name;
    END IF;
    UPDATE taskyard.schedule s SET last = _last, fired = _fired, skipped = _skipped WHERE s.name = _name;
END $$;

-- When the first schedule is due.
CREATE OR REPLACE FUNCTION taskyard.first_schedule() RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT s.next FROM taskyard.schedule s WHERE NOT s.paused AND s.next IS NOT NULL ORDER BY s.next, s.name LIMIT 1
$$;

-- The number with more, at most the largest.
CREATE OR REPLACE FUNCTION taskyard.plus(_number bigint, _more bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN _number > 9223372036854775807 - _more THEN 9223372036854775807 ELSE _number + _more END
$$;

-- Adds the tasks of a schedule, if _expected is still its next time and it is not paused. outcome: 0 done, 1 no such schedule, 2 another
-- time is next, 3 it would be done, but the caller must _refuse its tasks, 4 the put was refused: then nothing is changed. `tube` is that
-- of the schedule; the columns before are those of put_keyed.
CREATE OR REPLACE FUNCTION taskyard.fire_schedule(
    _name text, _expected bigint, _next bigint, _skipped bigint, _now bigint, _refuse boolean, _payloads bytea[],
    _metas bytea[], _pris bigint[], _ttls bigint[], _ttrs bigint[], _delays bigint[], _ats bigint[], _subqueues text[],
    _semaphore_priorities float8[], _keys text[], _unique_for bigint[], _replaces boolean[], _attempts_max bigint[],
    _parts integer[], OUT status smallint, OUT number integer, OUT capacity bigint, OUT accepted boolean[],
    OUT ids bigint[], OUT states smallint[], OUT existing boolean[], OUT wakeup bigint, OUT best bigint,
    OUT returned bigint, OUT expired bigint, OUT room bigint, OUT outcome smallint, OUT tube text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _s taskyard.schedule;
    _count integer := cardinality(_payloads);
    _held bigint;
BEGIN
    SELECT * INTO _s FROM taskyard.schedule s WHERE s.name = _name FOR UPDATE;
    outcome := CASE WHEN NOT FOUND THEN 1 WHEN _s.paused OR _s.next IS DISTINCT FROM _expected THEN 2 ELSE 0 END;
    tube := _s.tube;
    status := 0;
    IF outcome = 0 AND _refuse THEN
        outcome := 3;
    END IF;
    IF outcome <> 0 THEN
        RETURN;
    END IF;
    _now := coalesce(_now, taskyard.clock());
    IF _count > 0 AND _s.overlap = 1 THEN
        _keys := array_fill('schedule:' || _name, ARRAY[_count]);
        _unique_for := array_fill(0::bigint, ARRAY[_count]);
        _replaces := array_fill(false, ARRAY[_count]);
        _parts := ARRAY[_count];
    END IF;
    IF _count > 0 THEN
        SELECT p.* INTO status, number, capacity, accepted, ids, states, existing, wakeup, best, returned, expired, room
            FROM taskyard.put_keyed(_s.tube, _now, ARRAY[_count], _payloads, _metas, _pris, _ttls, _ttrs, _delays, _ats,
                _subqueues, _semaphore_priorities, _keys, _unique_for, _replaces, _attempts_max, _parts) p;
        IF status <> 0 OR NOT coalesce(accepted[1], true) THEN
            outcome := 4;
            RETURN;
        END IF;
    END IF;
    _held := coalesce(cardinality(array_remove(existing, false)), 0);
    UPDATE taskyard.schedule s SET next = _next, last = CASE WHEN _count > _held THEN _now ELSE s.last END,
        fired = s.fired + _count - _held, skipped = taskyard.plus(taskyard.plus(s.skipped, _skipped), _held)
        WHERE s.name = _name;
END $$;
