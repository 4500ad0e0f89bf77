-- Puts tasks of which some have a unique key or their own number of attempts.

-- Gives the tasks of these ids the content of a put, where _replaced says so, and counts what changes. Returns the new states by place,
-- the next deadline, and how many tasks are ready after it.
CREATE OR REPLACE FUNCTION taskyard.replace_tasks(
    _t taskyard.tube, _now bigint, _ids bigint[], _replaced boolean[], _payloads bytea[], _metas bytea[], _pris bigint[],
    _ttls bigint[], _ttrs bigint[], _delays bigint[], _ats bigint[], _semaphore_priorities float8[],
    _unique_for bigint[], INOUT states smallint[], OUT wakeup bigint, OUT ready bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _row record;
    _more bigint[] := '[0:6]={0,0,0,0,0,0,0}';
BEGIN
    ready := 0;
    FOR _row IN
        UPDATE taskyard.task t SET payload = n.payload, meta = n.meta, since = _now, unique_for = n.unique_for,
            semaphore_priority = n.semaphore_priority, pri = n.pri, ttr = n.ttr,
            state = CASE WHEN n.due > _now THEN 2 ELSE 0 END,
            expires = taskyard.later(greatest(n.due, _now), n.ttl),
            timer = taskyard.timer(CASE WHEN n.due > _now THEN n.due ELSE taskyard.later(_now, n.ttl) END)
        FROM (SELECT u.place, u.payload, u.meta, u.semaphore_priority, coalesce(u.unique_for, 0) AS unique_for, d.*
            FROM unnest(_payloads, _metas, _pris, _ttls, _ttrs, _delays, _ats, _semaphore_priorities, _unique_for)
                WITH ORDINALITY AS u(payload, meta, pri, ttl, ttr, delay, at, semaphore_priority, unique_for, place)
            CROSS JOIN LATERAL (SELECT
                CASE WHEN _t.has_times THEN coalesce(u.pri, _t.pri) ELSE -9223372036854775808 END AS pri,
                CASE WHEN _t.has_times THEN coalesce(u.ttr, _t.ttr, u.ttl, _t.ttl, {{FOREVER}}) ELSE {{FOREVER}} END AS ttr,
                CASE WHEN _t.has_times THEN coalesce(u.ttl, _t.ttl, {{FOREVER}}) ELSE {{FOREVER}} END AS ttl,
                CASE WHEN _t.has_times THEN coalesce(u.at, taskyard.later(_now, coalesce(u.delay, _t.delay, 0)))
                    ELSE _now END AS due) d
            WHERE _replaced[u.place]) n
        CROSS JOIN LATERAL (SELECT k.ctid AS place, k.state FROM taskyard.task k
            WHERE k.tube = _t.number AND k.id = _ids[n.place] OFFSET 0) k
        WHERE t.ctid = k.place
        RETURNING n.place, k.state AS before, t.state, t.timer
    LOOP
        states[_row.place] := _row.state;
        wakeup := least(wakeup, _row.timer);
        ready := ready + CASE WHEN _row.state = 0 THEN 1 ELSE 0 END;
        _more[_row.before] := _more[_row.before] - 1;
        _more[_row.state] := _more[_row.state] + 1;
    END LOOP;
    PERFORM taskyard.add_counts(_t.number, _more);
END $$;

-- Takes the locks of a put with keys into a tube with a capacity or sub-queues, and finds which of the puts fit: only tasks whose key is
-- not held need room. The results are those of prepare_put; _keys are the sub-queues of the tasks and of the holders of their keys.
CREATE OR REPLACE FUNCTION taskyard.prepare_keyed_put(
    _t taskyard.tube, _now bigint, _sizes integer[], _task_keys text[], _subqueues text[],
    OUT _locked boolean, OUT _keys text[], OUT _accepted boolean[], OUT _keep boolean[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _all boolean[] := array_fill(true, ARRAY[cardinality(_task_keys)]);
    _needs boolean[] := _all;
    _place bigint;
    _last integer := 0;
    _room bigint;
    _added bigint;
BEGIN
    PERFORM taskyard.check_isolation(_t);
    IF _t.has_subqueues THEN
        _keys := ARRAY(SELECT DISTINCT coalesce(n.key, 'nil') FROM unnest(_task_keys, _subqueues) AS n(task_key, key)
            UNION SELECT k.subqueue FROM taskyard.key_holders(_t.number, _task_keys, _all, _now) h
                CROSS JOIN LATERAL (SELECT t.subqueue FROM taskyard.task t
                    WHERE t.tube = _t.number AND t.id = h.id AND h.state <> 7 OFFSET 0) k);
    END IF;
    _locked := taskyard.lock_for_put(_t.number, _t.capacity, _keys);
    IF NOT _locked OR _t.capacity IS NULL THEN
        RETURN;
    END IF;
    FOR _place IN SELECT h.place FROM taskyard.key_holders(_t.number, _task_keys, _all, _now) h WHERE h.until > _now
        OR h.state <> 7 AND NOT h.over
    LOOP
        _needs[_place] := false;
    END LOOP;
    _room := taskyard.room(_t.number, _t.capacity);
    FOR i IN 1 .. cardinality(_sizes) LOOP
        -- A key that a put names twice needs room once.
        SELECT count(*) FILTER (WHERE n.key IS NULL) + count(DISTINCT n.key) INTO _added
            FROM unnest(_task_keys[_last + 1:_last + _sizes[i]], _needs[_last + 1:_last + _sizes[i]]) AS n(key, needs)
            WHERE n.needs;
        _last := _last + _sizes[i];
        _accepted[i] := _added <= _room;
        IF _accepted[i] THEN
            _room := _room - _added;
        END IF;
        _keep := _keep || array_fill(_accepted[i], ARRAY[_sizes[i]]);
    END LOOP;
END $$;

-- The states of these tasks, and of those that are gone the states given.
CREATE OR REPLACE FUNCTION taskyard.states_of(_number integer, _ids bigint[], _states smallint[]) RETURNS smallint[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(SELECT coalesce(k.state, n.state) FROM unnest(_ids, _states) WITH ORDINALITY AS n(id, state, place)
        LEFT JOIN LATERAL (SELECT t.state FROM taskyard.task t
            WHERE t.tube = _number AND t.id = n.id OFFSET 0) k ON true
        ORDER BY n.place);
END $$;

-- Puts tasks among which no key occurs twice: those that are _wanted. Returns ids and states by place, which tasks are new, the tasks that
-- changed in the order of the put, what had expired, how many of the replaced ones are ready, and the rest as insert_tasks.
CREATE OR REPLACE FUNCTION taskyard.put_part(
    _t taskyard.tube, _now bigint, _wanted boolean[], _payloads bytea[], _metas bytea[], _pris bigint[], _ttls bigint[],
    _ttrs bigint[], _delays bigint[], _ats bigint[], _subqueues text[], _semaphore_priorities float8[],
    _keys text[], _unique_for bigint[], _replaces boolean[], _attempts_max bigint[],
    INOUT ids bigint[], INOUT states smallint[], OUT locked boolean, OUT added boolean[], OUT moved bigint[],
    OUT gone bigint[], OUT ready bigint, OUT wakeup bigint, OUT best bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _held record;
    _put record;
    _replaced record;
    _place bigint;
BEGIN
    _held := taskyard.hold_keys(_t, _now, _keys, _replaces, _wanted, ids, states);
    ids := _held.ids;
    states := _held.states;
    locked := _held.locked;
    added := _held.added;
    gone := _held.gone;
    ready := 0;
    IF NOT locked THEN
        RETURN;
    END IF;
    _put := taskyard.insert_tasks(_t, _now, _payloads, _metas, _pris, _ttls, _ttrs, _delays, _ats, _subqueues,
        _semaphore_priorities, ids, added, _keys, _unique_for, _attempts_max);
    wakeup := _put.wakeup;
    best := CASE WHEN _put.ids IS NOT NULL THEN _put.best END;
    states := ARRAY(SELECT CASE WHEN n.added AND coalesce(_put.delayed[n.number], false) THEN 2 WHEN n.added THEN 0
            ELSE n.state END FROM (SELECT u.added, u.state, u.place,
                (count(*) FILTER (WHERE u.added) OVER (ORDER BY u.place))::integer AS number
            FROM unnest(added, states) WITH ORDINALITY AS u(added, state, place)) n ORDER BY n.place);
    IF true = ANY (_held.replaced) THEN
        _replaced := taskyard.replace_tasks(_t, _now, ids, _held.replaced, _payloads, _metas, _pris, _ttls, _ttrs,
            _delays, _ats, _semaphore_priorities, _unique_for, states);
        states := _replaced.states;
        wakeup := least(wakeup, _replaced.wakeup);
        ready := _replaced.ready;
    END IF;
    moved := ARRAY(SELECT n.id FROM unnest(ids, added, _held.replaced) AS n(id, added, replaced)
        WHERE n.added OR n.replaced);
END $$;

-- The places of the tasks that decide about tasks: their own, and for a task that does not replace the holder of a key that occurred
-- before it, the place of the last one of that key that is not such a task.
CREATE OR REPLACE FUNCTION taskyard.repeated_keys(_keys text[], _replaces boolean[]) RETURNS integer[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(s.same::integer ORDER BY s.place) FROM (
        SELECT n.place, max(n.place) FILTER (WHERE n.key IS NULL OR n.replaces OR n.number = 1)
            OVER (PARTITION BY n.key ORDER BY n.place) AS same
        FROM (SELECT u.*, row_number() OVER (PARTITION BY u.key ORDER BY u.place) AS number
            FROM unnest(_keys, _replaces) WITH ORDINALITY AS u(key, replaces, place)) n) s
$$;

-- For tasks whose content no other command can see, because a later one of the same key replaces it, the place of the last one that
-- does. The first task of each key and the last that replaces are no such tasks. NULL for all others.
CREATE OR REPLACE FUNCTION taskyard.replaced_again(_keys text[], _replaces boolean[]) RETURNS integer[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(CASE WHEN n.replaces AND n.number > 1 AND n.last > n.place THEN n.last::integer END ORDER BY n.place)
        FROM (SELECT u.place, u.replaces, row_number() OVER (PARTITION BY u.key ORDER BY u.place) AS number,
                max(u.place) FILTER (WHERE u.replaces) OVER (PARTITION BY u.key) AS last
            FROM unnest(_keys, _replaces) WITH ORDINALITY AS u(key, replaces, place)) n
$$;

-- Adds the results of the tasks that have a place in _again: the id of the holder and, if that was replaced, the state that their own
-- content gave it.
CREATE OR REPLACE FUNCTION taskyard.add_replaced_again(
    _t taskyard.tube, _now bigint, _again integer[], _delays bigint[], _ats bigint[], INOUT ids bigint[], INOUT states smallint[])
LANGUAGE sql STABLE SET enable_nestloop = off SET enable_hashjoin = on AS $$
    SELECT array_agg(coalesce(l.id, n.id) ORDER BY n.place), array_agg(CASE WHEN l.id IS NULL THEN n.state
                WHEN l.state NOT IN (0, 2, 6) THEN l.state
                WHEN _t.has_times AND coalesce(n.at, taskyard.later(_now, coalesce(n.delay, _t.delay, 0))) > _now THEN 2
                ELSE 0 END::smallint ORDER BY n.place)
        FROM unnest(_again, ids, states, _delays, _ats) WITH ORDINALITY AS n(again, id, state, delay, at, place)
        LEFT JOIN unnest(ids, states) WITH ORDINALITY AS l(id, state, place) ON l.place = n.again
$$;

-- The results of tasks by the places of the tasks that decide about them. Postgres does not know how many there are, and would compare
-- each with each; servers switch the other kinds of joins off.
CREATE OR REPLACE FUNCTION taskyard.repeat_results(
    _same integer[], INOUT ids bigint[], INOUT states smallint[], INOUT existing boolean[])
LANGUAGE sql IMMUTABLE SET enable_nestloop = off SET enable_hashjoin = on AS $$
    SELECT array_agg(r.id ORDER BY n.place), array_agg(r.state ORDER BY n.place),
            array_agg(r.existing OR n.same <> n.place ORDER BY n.place)
        FROM unnest(_same) WITH ORDINALITY AS n(same, place)
        JOIN unnest(ids, states, existing) WITH ORDINALITY AS r(id, state, existing, place) ON r.place = n.same
$$;

-- Puts the tasks for which _keep is true or NULL part by part; see put_keyed for the arguments and results. `moved` are the tasks that
-- changed, those that had expired first.
CREATE OR REPLACE FUNCTION taskyard.put_parts(
    _t taskyard.tube, _now bigint, _keep boolean[], _payloads bytea[], _metas bytea[], _pris bigint[], _ttls bigint[],
    _ttrs bigint[], _delays bigint[], _ats bigint[], _subqueues text[], _semaphore_priorities float8[],
    _keys text[], _unique_for bigint[], _replaces boolean[], _attempts_max bigint[], _parts integer[],
    OUT ids bigint[], OUT states smallint[], OUT existing boolean[], OUT locked boolean, OUT wakeup bigint, OUT best bigint,
    OUT returned bigint, OUT expired bigint, OUT moved bigint[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _count integer := cardinality(_payloads);
    _part record;
    _same integer[];
    _again integer[];
    _wanted boolean[];
    _first integer;
    _last integer := 0;
BEGIN
    locked := true;
    returned := 0;
    expired := 0;
    moved := '{}';
    IF _parts IS NOT NULL AND _t.has_times AND coalesce(_t.ttl = 0 OR 0 = ANY (_ttls), false) THEN
        -- A task may be over before the next one of its key.
        _parts := array_fill(1, ARRAY[_count]);
    ELSIF _parts IS NOT NULL THEN
        _same := taskyard.repeated_keys(_keys, _replaces);
        _again := taskyard.replaced_again(_keys, _replaces);
    END IF;
    FOREACH _count IN ARRAY coalesce(_parts, ARRAY[_count]) LOOP
        _first := _last + 1;
        _last := _last + _count;
        _wanted := CASE WHEN _keep IS NULL AND _parts IS NULL THEN array_fill(true, ARRAY[_count])
            ELSE ARRAY(SELECT coalesce(n.keep, true) AND coalesce(n.same = _last - _count + n.place, true) AND n.again IS NULL
                FROM unnest(_keys[_first:_last], _keep[_first:_last], _same[_first:_last], _again[_first:_last])
                    WITH ORDINALITY AS n(key, keep, same, again, place)
                ORDER BY n.place) END;
        IF _parts IS NULL THEN
            _part := taskyard.put_part(_t, _now, _wanted, _payloads, _metas, _pris, _ttls, _ttrs, _delays, _ats, _subqueues,
                _semaphore_priorities, _keys, _unique_for, _replaces, _attempts_max,
                array_fill(NULL::bigint, ARRAY[_count]), array_fill(NULL::smallint, ARRAY[_count]));
        ELSE
            _part := taskyard.put_part(_t, _now, _wanted, _payloads[_first:_last], _metas[_first:_last], _pris[_first:_last],
                _ttls[_first:_last], _ttrs[_first:_last], _delays[_first:_last], _ats[_first:_last], _subqueues[_first:_last],
                _semaphore_priorities[_first:_last], _keys[_first:_last], _unique_for[_first:_last], _replaces[_first:_last],
                _attempts_max[_first:_last], array_fill(NULL::bigint, ARRAY[_count]), array_fill(NULL::smallint, ARRAY[_count]));
        END IF;
        locked := _part.locked;
        IF NOT locked AND _first > 1 THEN
            -- Nothing of the parts before may stay.
            RAISE EXCEPTION 'an open transaction has put a task with a key of this put into tube %', _t.name
                USING ERRCODE = 'lock_not_available';
        END IF;
        EXIT WHEN NOT locked;
        ids := ids || _part.ids;
        states := states || _part.states;
        existing := existing || ARRAY(SELECT NOT n.added FROM unnest(_part.added) WITH ORDINALITY AS n(added, place)
            ORDER BY n.place);
        wakeup := least(wakeup, _part.wakeup);
        best := least(best, _part.best);
        returned := returned + _part.ready;
        expired := expired + coalesce(cardinality(_part.gone), 0);
        moved := _part.gone || moved || _part.moved;
    END LOOP;
    IF _same IS NOT NULL AND locked THEN
        SELECT r.* INTO ids, states FROM taskyard.add_replaced_again(_t, _now, _again, _delays, _ats, ids, states) r;
        SELECT r.* INTO ids, states, existing FROM taskyard.repeat_results(_same, ids, states, existing) r;
    END IF;
END $$;

-- Puts tasks into a tube without capacity, sub-queues and semaphore whose keys no task has or had, which is so for most puts: nothing is
-- computed for each task. Returns NULL if some of the keys are known, or given away meanwhile; then nothing was done.
CREATE OR REPLACE FUNCTION taskyard.put_new(
    _t taskyard.tube, _now bigint, _payloads bytea[], _keys text[], _unique_for bigint[], _attempts_max bigint[],
    OUT locked boolean, OUT ids bigint[], OUT wakeup bigint, OUT best bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _ttl bigint := CASE WHEN _t.has_times THEN coalesce(_t.ttl, {{FOREVER}}) ELSE {{FOREVER}} END;
    _expires bigint := taskyard.later(_now, _ttl);
    _count integer := cardinality(_payloads);
    _given text[];
    _claim record;
BEGIN
    IF _count = 1 AND _keys[1] IS NOT NULL THEN
        _claim := taskyard.claim_new_key(_t.number, _keys[1], _t.ids);
        IF _claim.id IS NULL AND _claim._locked THEN
            RETURN;
        END IF;
        ids := ARRAY[_claim.id];
    ELSE
        -- A put of more than 16 keys is recognized as a repeated one by three of them. The search for all of them would cost as much as
        -- their insertion, which finds the others: it ends at the first known key and is taken back. Only the ids of the attempt are lost.
        _given := array_remove(_keys, NULL);
        PERFORM 1 FROM taskyard.key k WHERE k.tube = _t.number AND k.key = ANY (CASE WHEN cardinality(_given) <= 16 THEN _given
            ELSE ARRAY[_given[1], _given[cardinality(_given) / 2 + 1], _given[cardinality(_given)]] END) LIMIT 1;
        IF FOUND THEN
            RETURN;
        END IF;
        ids := ARRAY(SELECT nextval(_t.ids) FROM generate_series(1, _count));
        _claim := taskyard.claim_keys(_t.number, _keys, ids, _now, true);
    END IF;
    IF _claim._lost OR NOT _claim._locked THEN
        locked := CASE WHEN NOT _claim._locked THEN false END;
        RETURN;
    END IF;
    locked := true;
    best := CASE WHEN _t.has_times THEN _t.pri ELSE -9223372036854775808 END;
    wakeup := taskyard.timer(_expires);
    _ttl := CASE WHEN _t.has_times THEN coalesce(_t.ttr, _ttl) ELSE _ttl END;
    -- Arrays in the list of results are read in step, and not copied into a table first.
    INSERT INTO taskyard.task (tube, id, state, pri, created, expires, ttr, timer, payload, key, unique_for, attempts_max)
        SELECT _t.number, unnest(ids), 0, best, _now, _expires, _ttl, wakeup, unnest(_payloads), unnest(_keys),
            unnest(_unique_for), unnest(_attempts_max);
    INSERT INTO taskyard.count (tube, ready) VALUES (_t.number, _count);
END $$;

-- As put_tasks, for tasks of which some have a key: _unique_for is for how long it stays held after the end, _replaces whether a waiting
-- holder is replaced. Or of which some have their own number of attempts. _parts has the number of tasks of each part in which no key
-- occurs twice apart from tasks that do not replace, or whose content is replaced again; NULL if no key occurs twice. For each task that was not refused there is the id and the state of the task or of the
-- holder of its key (7: ended), and whether it existed; without states all tasks are new and ready. `returned` is how many replaced tasks
-- are ready, `expired` how many holders had expired and were removed; then `room` is the room of the tube.
CREATE OR REPLACE FUNCTION taskyard.put_keyed(
    _tube text, _now bigint, _sizes integer[], _payloads bytea[], _metas bytea[], _pris bigint[],
    _ttls bigint[], _ttrs bigint[], _delays bigint[], _ats bigint[], _subqueues text[],
    _semaphore_priorities float8[], _keys text[], _unique_for bigint[], _replaces boolean[], _attempts_max bigint[],
    _parts integer[], OUT status smallint, OUT number integer, OUT capacity bigint, OUT accepted boolean[],
    OUT ids bigint[], OUT states smallint[], OUT existing boolean[], OUT wakeup bigint, OUT best bigint,
    OUT returned bigint, OUT expired bigint, OUT room bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _count integer := cardinality(_payloads);
    _locked boolean;
    _queues text[];
    _keep boolean[];
    _moved bigint[];
    _new record;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    number := _t.number;
    capacity := _t.capacity;
    status := CASE WHEN NOT FOUND THEN 1 WHEN _t.semaphore IS NULL AND _semaphore_priorities IS NOT NULL THEN 9 ELSE 0 END;
    IF status <> 0 THEN
        RETURN;
    END IF;
    _now := coalesce(_now, taskyard.clock());
    _keys := coalesce(_keys, array_fill(NULL::text, ARRAY[_count]));
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
    END IF;
    IF _t.capacity IS NOT NULL OR _t.has_subqueues THEN
        SELECT p._locked, p._keys, p._accepted, p._keep INTO _locked, _queues, accepted, _keep
            FROM taskyard.prepare_keyed_put(_t, _now, _sizes, _keys, _subqueues) p;
        status := CASE WHEN _locked THEN 0 ELSE 8 END;
        IF status <> 0 THEN
            RETURN;
        END IF;
    END IF;
    returned := 0;
    expired := 0;
    IF _parts IS NULL AND coalesce(_t.capacity, _t.semaphore) IS NULL AND NOT _t.has_subqueues AND _metas IS NULL
        AND (NOT _t.has_times OR coalesce(_pris, _ttls, _ttrs, _delays, _ats) IS NULL AND coalesce(_t.delay, 0) = 0)
    THEN
        _new := taskyard.put_new(_t, _now, _payloads, _keys, _unique_for, _attempts_max);
        IF _new.locked IS NOT NULL THEN
            status := CASE WHEN _new.locked THEN 0 ELSE 8 END;
            ids := _new.ids;
            wakeup := _new.wakeup;
            best := _new.best;
            RETURN;
        END IF;
    END IF;
    SELECT p.* INTO ids, states, existing, _locked, wakeup, best, returned, expired, _moved FROM taskyard.put_parts(
        _t, _now, _keep, _payloads, _metas, _pris, _ttls, _ttrs, _delays, _ats, _subqueues, _semaphore_priorities, _keys,
        _unique_for, _replaces, _attempts_max, _parts) p;
    IF NOT _locked THEN
        status := 8;
        RETURN;
    END IF;
    IF _t.has_subqueues THEN
        PERFORM taskyard.set_subqueue_heads(_t.number, _queues);
    END IF;
    IF _t.semaphore IS NOT NULL AND cardinality(_moved) > 0 THEN
        wakeup := least(wakeup, taskyard.update_gate(_t, _moved, _now));
        states := taskyard.states_of(_t.number, ids, states);
    END IF;
    room := CASE WHEN expired > 0 THEN taskyard.room(_t.number, _t.capacity) END;
END $$;
