-- Puts tasks.

-- Reserves the next ids of a tube for a later put, so that puts on two connections get ids in the order of their commands.
CREATE OR REPLACE FUNCTION taskyard.reserve_ids(
    _tube text, _count bigint, OUT number integer, OUT ids bigint[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    IF FOUND THEN
        number := _t.number;
        ids := ARRAY(SELECT nextval(_t.ids) FROM generate_series(1, _count));
    END IF;
END $$;

-- Refuses a put into a tube with a capacity in a transaction that cannot count its tasks.
CREATE OR REPLACE FUNCTION taskyard.check_isolation(_t taskyard.tube) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _t.capacity IS NOT NULL
        AND current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
    THEN
        RAISE EXCEPTION 'tube ''%'' has a capacity, which a transaction that is % cannot count',
            _t.name, current_setting('transaction_isolation')
            USING ERRCODE = 'feature_not_supported',
                HINT = 'begin it with ISOLATION LEVEL READ COMMITTED';
    END IF;
END $$;

-- Locks what puts into a tube with a capacity or sub-queues need, and finds which of them fit: a put is accepted or refused
-- as a whole. Returns the keys of the sub-queues and, for a tube with a capacity, which puts are accepted and which tasks
-- they have. _locked is false if an open transaction holds the locks.
CREATE OR REPLACE FUNCTION taskyard.prepare_put(
    _t taskyard.tube, _sizes integer[], _payloads bytea[], _subqueues text[],
    OUT _locked boolean, OUT _keys text[], OUT _accepted boolean[], OUT _keep boolean[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _room bigint;
BEGIN
    PERFORM taskyard.check_isolation(_t);
    IF _t.has_subqueues THEN
        _keys := ARRAY(SELECT DISTINCT coalesce(n.key, 'nil')
            FROM unnest(_payloads, _subqueues) AS n(payload, key));
    END IF;
    _locked := taskyard.lock_for_put(_t.number, _t.capacity, _keys);
    IF NOT _locked OR _t.capacity IS NULL THEN
        RETURN;
    END IF;
    -- The count must see what the transaction has put that had the lock before, so it is a later statement.
    _room := taskyard.room(_t.number, _t.capacity);
    FOR i IN 1 .. cardinality(_sizes) LOOP
        _accepted[i] := _sizes[i] <= _room;
        IF _accepted[i] THEN
            _room := _room - _sizes[i];
        END IF;
        _keep := _keep || array_fill(_accepted[i], ARRAY[_sizes[i]]);
    END LOOP;
END $$;

-- Inserts tasks that differ from each other or need a sub-queue, and counts them. With _keep only those for which it is
-- true. best is the lowest priority, delayed is NULL in a tube without times.
CREATE OR REPLACE FUNCTION taskyard.insert_tasks(
    _t taskyard.tube, _now bigint, _payloads bytea[], _metas bytea[], _pris bigint[], _ttls bigint[],
    _ttrs bigint[], _delays bigint[], _ats bigint[], _subqueues text[], _semaphore_priorities float8[],
    _reserved bigint[], _keep boolean[], _keys text[], _unique_for bigint[], _attempts_max bigint[],
    OUT ids bigint[], OUT delayed boolean[], OUT wakeup bigint, OUT best bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _delayed bigint := 0;
BEGIN
    IF _t.has_times THEN
        WITH added AS (
            INSERT INTO taskyard.task (tube, id, state, pri, created, expires, ttr, timer, subqueue, semaphore_priority,
                meta, payload, key, unique_for, attempts_max)
            SELECT _t.number, coalesce(_reserved[n.place], nextval(_t.ids)), CASE WHEN d.due > _now THEN 2 ELSE 0 END,
                coalesce(n.pri, _t.pri), _now,
                -- The time to live begins when the delay is over.
                taskyard.later(greatest(d.due, _now), d.ttl),
                coalesce(n.ttr, _t.ttr, d.ttl),
                taskyard.timer(CASE WHEN d.due > _now THEN d.due ELSE taskyard.later(_now, d.ttl) END),
                CASE WHEN _t.has_subqueues THEN coalesce(n.subqueue, 'nil') END,
                n.semaphore_priority, n.meta, n.payload, n.key, n.unique_for, n.attempts_max
            FROM unnest(_payloads, _metas, _pris, _ttls, _ttrs, _delays, _ats, _subqueues, _semaphore_priorities,
                    _keys, _unique_for, _attempts_max)
                WITH ORDINALITY AS n(payload, meta, pri, ttl, ttr, delay, at, subqueue, semaphore_priority,
                    key, unique_for, attempts_max, place)
            CROSS JOIN LATERAL (SELECT
                coalesce(n.ttl, _t.ttl, {{FOREVER}}) AS ttl,
                coalesce(n.at, taskyard.later(_now, coalesce(n.delay, _t.delay, 0))) AS due) d
            WHERE _keep IS NULL OR _keep[n.place]
            RETURNING task.id, task.state, task.timer, task.pri)
        SELECT array_agg(a.id), array_agg(a.state = 2), min(a.timer), min(a.pri),
            count(*) FILTER (WHERE a.state = 2)
            INTO ids, delayed, wakeup, best, _delayed FROM added a;
    ELSE
        WITH added AS (
            INSERT INTO taskyard.task (tube, id, state, pri, created, expires, ttr, subqueue, semaphore_priority,
                meta, payload, key, unique_for, attempts_max)
            SELECT _t.number, coalesce(_reserved[n.place], nextval(_t.ids)), 0, (-9223372036854775808)::bigint, _now,
                9223372036854775807, {{FOREVER}},
                CASE WHEN _t.has_subqueues THEN coalesce(n.subqueue, 'nil') END,
                n.semaphore_priority, n.meta, n.payload, n.key, n.unique_for, n.attempts_max
            FROM unnest(_payloads, _metas, _subqueues, _semaphore_priorities, _keys, _unique_for, _attempts_max)
                WITH ORDINALITY AS n(payload, meta, subqueue, semaphore_priority, key, unique_for, attempts_max, place)
            WHERE _keep IS NULL OR _keep[n.place]
            RETURNING task.id)
        SELECT array_agg(a.id) INTO ids FROM added a;
        best := -9223372036854775808;
    END IF;
    IF ids IS NOT NULL THEN
        INSERT INTO taskyard.count (tube, ready, delayed)
            VALUES (_t.number, cardinality(ids) - _delayed, _delayed);
    END IF;
END $$;

-- Which of these tasks of a tube are delayed or wait for its semaphore.
CREATE OR REPLACE FUNCTION taskyard.are_delayed(_number integer, _ids bigint[]) RETURNS boolean[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(SELECT k.state IN (2, 6) FROM unnest(_ids) WITH ORDINALITY AS i(id, n)
        CROSS JOIN LATERAL (SELECT k.state FROM taskyard.task k
            WHERE k.tube = _number AND k.id = i.id OFFSET 0) k
        ORDER BY i.n);
END $$;

-- The puts of several callers into one tube: _sizes has the number of tasks of each, the other arrays have the tasks of
-- all; NULL instead of an array is NULL for every task. status: 0 done, 1 no such tube, 8 an open transaction holds what
-- the put must lock, 9 priorities for a semaphore in a tube without one; best is the lowest priority that was put; delayed
-- is NULL where none is. A put that does not fit into the tube's capacity is refused whole. Ids that were reserved in the
-- tube with this number are used.
CREATE OR REPLACE FUNCTION taskyard.put_tasks(
    _tube text, _now bigint, _sizes integer[], _payloads bytea[], _metas bytea[], _pris bigint[],
    _ttls bigint[], _ttrs bigint[], _delays bigint[], _ats bigint[], _subqueues text[],
    _semaphore_priorities float8[], _reserved_in integer, _reserved bigint[],
    OUT status smallint, OUT number integer, OUT capacity bigint, OUT accepted boolean[],
    OUT ids bigint[], OUT delayed boolean[], OUT wakeup bigint, OUT best bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _prepared record;
    _keep boolean[];
    _ttl bigint;
    _expires bigint;
    _put record;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    number := _t.number;
    capacity := _t.capacity;
    IF NOT FOUND OR _t.semaphore IS NULL AND _semaphore_priorities IS NOT NULL THEN
        status := CASE WHEN number IS NULL THEN 1 ELSE 9 END;
        RETURN;
    END IF;
    _now := coalesce(_now, taskyard.clock());
    _reserved := CASE WHEN _reserved_in = _t.number AND _t.capacity IS NULL THEN _reserved END;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
    END IF;
    IF _t.capacity IS NOT NULL OR _t.has_subqueues THEN
        _prepared := taskyard.prepare_put(_t, _sizes, _payloads, _subqueues);
        IF NOT _prepared._locked THEN
            status := 8;
            RETURN;
        END IF;
        accepted := _prepared._accepted;
        _keep := _prepared._keep;
    END IF;
    status := 0;
    IF _t.capacity IS NULL AND NOT _t.has_subqueues AND _metas IS NULL AND _semaphore_priorities IS NULL
        AND (NOT _t.has_times OR coalesce(_pris, _ttls, _ttrs, _delays, _ats) IS NULL AND coalesce(_t.delay, 0) = 0)
    THEN
        -- Most puts: nothing is computed for each task, and the insert returns nothing.
        best := CASE WHEN _t.has_times THEN _t.pri ELSE (-9223372036854775808)::bigint END;
        _ttl := CASE WHEN _t.has_times THEN coalesce(_t.ttl, {{FOREVER}}) ELSE {{FOREVER}} END;
        _expires := taskyard.later(_now, _ttl);
        wakeup := taskyard.timer(_expires);
        ids := coalesce(_reserved, ARRAY(
            SELECT nextval(_t.ids) FROM generate_series(1, cardinality(_payloads))));
        INSERT INTO taskyard.task (tube, id, state, pri, created, expires, ttr, timer, payload)
            SELECT _t.number, n.id, 0, best, _now, _expires,
                CASE WHEN _t.has_times THEN coalesce(_t.ttr, _ttl) ELSE _ttl END, wakeup, n.payload
            FROM unnest(ids, _payloads) AS n(id, payload);
        INSERT INTO taskyard.count (tube, ready) VALUES (_t.number, cardinality(ids));
    ELSE
        _put := taskyard.insert_tasks(_t, _now, _payloads, _metas, _pris, _ttls, _ttrs, _delays, _ats, _subqueues,
            _semaphore_priorities, _reserved, _keep, NULL, NULL, NULL);
        ids := _put.ids;
        delayed := _put.delayed;
        wakeup := _put.wakeup;
        best := _put.best;
    END IF;
    IF _t.has_subqueues THEN
        PERFORM taskyard.set_subqueue_heads(_t.number, _prepared._keys);
    END IF;
    IF _t.semaphore IS NOT NULL AND ids IS NOT NULL THEN
        wakeup := least(wakeup, taskyard.update_gate(_t, ids, _now));
        delayed := taskyard.are_delayed(_t.number, ids);
    END IF;
END $$;

-- The same without priorities for a semaphore, for servers of earlier versions.
CREATE OR REPLACE FUNCTION taskyard.put_tasks(
    _tube text, _now bigint, _sizes integer[], _payloads bytea[], _metas bytea[], _pris bigint[],
    _ttls bigint[], _ttrs bigint[], _delays bigint[], _ats bigint[], _subqueues text[],
    _reserved_in integer, _reserved bigint[],
    OUT status smallint, OUT number integer, OUT capacity bigint, OUT accepted boolean[],
    OUT ids bigint[], OUT delayed boolean[], OUT wakeup bigint, OUT best bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT * FROM taskyard.put_tasks(_tube, _now, _sizes, _payloads, _metas, _pris, _ttls, _ttrs,
        _delays, _ats, _subqueues, NULL, _reserved_in, _reserved)
$$;

-- The same without reserved ids, for servers of earlier versions and plain SQL.
CREATE OR REPLACE FUNCTION taskyard.put_tasks(
    _tube text, _now bigint, _sizes integer[], _payloads bytea[], _metas bytea[], _pris bigint[],
    _ttls bigint[], _ttrs bigint[], _delays bigint[], _ats bigint[], _subqueues text[],
    OUT status smallint, OUT number integer, OUT capacity bigint, OUT accepted boolean[],
    OUT ids bigint[], OUT delayed boolean[], OUT wakeup bigint, OUT best bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT * FROM taskyard.put_tasks(_tube, _now, _sizes, _payloads, _metas, _pris, _ttls, _ttrs,
        _delays, _ats, _subqueues, NULL, NULL, NULL)
$$;
