-- Ticks: ends delays, leases, lifetimes and sessions that are due, and removes done tasks and free keys.

DROP FUNCTION IF EXISTS taskyard.tick_tasks(integer[], bigint[], bigint[], smallint[], bigint[], bigint);
DROP FUNCTION IF EXISTS taskyard.tick(bigint, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.tick_all(bigint, bigint, bigint);

-- Adds up the rows of counts where there are many. A tube must not be emptied at the same time, since that would not see the
-- sum.
CREATE OR REPLACE FUNCTION taskyard.fold_counts() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
BEGIN
    FOR _t IN SELECT * FROM taskyard.tube t WHERE t.number IN (
        SELECT c.tube FROM taskyard.count c GROUP BY c.tube HAVING count(*) > 50)
    LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock_shared(1952543595, hashtext(_t.name));
        WITH gone AS (DELETE FROM taskyard.count c WHERE c.tube = _t.number RETURNING c.*)
        INSERT INTO taskyard.count (tube, ready, passed, taken, delayed, buried, kept, ended)
            SELECT g.tube, sum(g.ready), sum(g.passed), sum(g.taken), sum(g.delayed), sum(g.buried), sum(g.kept),
                sum(g.ended)
            FROM gone g GROUP BY g.tube;
    END LOOP;
END $$;

-- The next timer of each tube that has one, without moments before _from; a tube may occur twice. The search goes from one tube
-- with timers to the next, so that ten thousand tubes without timers cost nothing. With _from, which skips dead index entries of
-- the past, all tubes are searched.
CREATE OR REPLACE FUNCTION taskyard.first_timers(_from bigint)
RETURNS TABLE (number integer, timer bigint) LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _from IS NOT NULL THEN
        RETURN QUERY SELECT f.number, f.timer FROM (
            SELECT u.number, taskyard.next_timer(u.number, _from) AS timer FROM taskyard.tube u) f
            WHERE f.timer IS NOT NULL;
        RETURN;
    END IF;
    LOOP
        SELECT t.tube, t.timer INTO number, timer FROM taskyard.task t
            WHERE t.state = 1 AND t.tube > coalesce(number, -1) ORDER BY t.tube, t.timer LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF timer IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
    LOOP
        SELECT t.tube, t.timer INTO number, timer FROM taskyard.task t
            WHERE t.timer IS NOT NULL AND t.state <> 1 AND t.tube > coalesce(number, -1)
            ORDER BY t.tube, t.timer LIMIT 1;
        EXIT WHEN NOT FOUND;
        RETURN NEXT;
    END LOOP;
END $$;

-- Up to _limit tasks of these tubes whose timer is due, without moments before _past.
CREATE OR REPLACE FUNCTION taskyard.due_tasks(_numbers integer[], _past bigint, _now bigint, _limit bigint,
    OUT tubes integer[], OUT ids bigint[], OUT leases bigint[], OUT states smallint[], OUT timers bigint[])
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT array_agg(d.tube), array_agg(d.id), array_agg(d.lease), array_agg(d.state), array_agg(d.timer)
        INTO tubes, ids, leases, states, timers
        FROM (SELECT k.* FROM unnest(_numbers) AS u(number) CROSS JOIN LATERAL (
                (SELECT t.tube, t.id, t.lease, t.state, t.timer FROM taskyard.task t
                WHERE t.tube = u.number AND t.timer BETWEEN _past AND _now AND t.state = 1
                ORDER BY t.timer LIMIT _limit)
                UNION ALL
                (SELECT t.tube, t.id, t.lease, t.state, t.timer FROM taskyard.task t
                WHERE t.tube = u.number AND t.timer BETWEEN _past AND _now AND t.state <> 1
                ORDER BY t.timer LIMIT _limit)) k
            LIMIT _limit) d;
END $$;

-- Ends the delays of these tasks of a tube that are due, and deletes those that have expired; one whose delay ends now is
-- looked at again in the next round. _moved are all tasks of the tube that time has moved, in the order of their timers.
-- Returns the events of the tube.
CREATE OR REPLACE FUNCTION taskyard.tick_tube(_t taskyard.tube, _ids bigint[], _moved bigint[], _now bigint)
RETURNS TABLE (event integer, count bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _due_places tid[];
    _gone_places tid[];
    _keys text[];
    _due bigint;
    _gone bigint;
    _held taskyard.held_key[];
BEGIN
    IF _t.has_subqueues THEN
        _keys := taskyard.lock_subqueues_of(_t.number, _ids);
    END IF;
    PERFORM taskyard.lock_tasks(_t.number, _ids);
    SELECT array_agg(k.place) FILTER (WHERE k.state = 2 AND k.timer <= _now),
        array_agg(k.place) FILTER (WHERE k.state IN (0, 3, 4, 5, 6) AND k.expires <= _now)
        INTO _due_places, _gone_places FROM unnest(_ids) AS i(id)
        CROSS JOIN LATERAL (SELECT t.ctid AS place, t.state, t.timer, t.expires
            FROM taskyard.task t WHERE t.tube = _t.number AND t.id = i.id OFFSET 0) k;
    UPDATE taskyard.task t SET state = 0, since = t.timer, timer = taskyard.timer(t.expires)
        WHERE t.ctid = ANY (_due_places);
    GET DIAGNOSTICS _due = ROW_COUNT;
    WITH gone AS (
        DELETE FROM taskyard.task t WHERE t.ctid = ANY (_gone_places)
        RETURNING t.state, t.id, t.key, t.unique_for, t.expires),
    counted AS (
        INSERT INTO taskyard.count (tube, ready, passed, delayed, buried)
        SELECT _t.number, _due - count(*) FILTER (WHERE g.state = 0),
            -count(*) FILTER (WHERE g.state = 5), -_due - count(*) FILTER (WHERE g.state = 6),
            -count(*) FILTER (WHERE g.state IN (3, 4))
        FROM gone g HAVING _due + count(*) > 0)
    SELECT count(*), array_agg(ROW(g.id, g.key, g.unique_for, g.expires)::taskyard.held_key)
            FILTER (WHERE g.key IS NOT NULL)
        INTO _gone, _held FROM gone g;
    IF _held IS NOT NULL THEN
        PERFORM taskyard.end_keys(_t.number, _held, _now);
    END IF;
    IF _t.has_subqueues THEN
        PERFORM taskyard.set_subqueue_heads(_t.number, _keys);
    END IF;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.update_gate(_t, _moved, _now);
    END IF;
    RETURN QUERY SELECT e.event, e.count
        FROM (VALUES (1, _due), (4, _gone), (7, taskyard.room(_t.number, _t.capacity))) AS e(event, count)
        WHERE e.count IS NOT NULL;
END $$;

-- Moves these due tasks: ends the deliveries whose lease is over, then what tick_tube does in each tube.
CREATE OR REPLACE FUNCTION taskyard.tick_tasks(
    _tubes integer[], _ids bigint[], _leases bigint[], _states smallint[], _timers bigint[], _now bigint, _seed bigint)
RETURNS TABLE (event integer, number integer, name text, count bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _own bigint[];
BEGIN
    PERFORM taskyard.lock_gates(_tubes);
    IF 1 = ANY (_states) THEN
        RETURN QUERY SELECT g.event, g.number, g.name, g.count
            FROM taskyard.release_deliveries(
                _tubes, _ids, _leases, 2, _now, '{{LEASE_EXPIRED}}', _now, _seed) g;
    END IF;
    FOR _t IN SELECT * FROM taskyard.tube t WHERE t.number = ANY (_tubes) ORDER BY t.name LOOP
        _own := ARRAY(SELECT d.id FROM unnest(_tubes, _ids, _states) AS d(tube, id, state)
            WHERE d.tube = _t.number AND d.state <> 1);
        CONTINUE WHEN _own = '{}' AND _t.semaphore IS NULL;
        RETURN QUERY SELECT e.event, _t.number, _t.name::text, e.count
            FROM taskyard.tick_tube(_t, _own, ARRAY(
                SELECT d.id FROM unnest(_tubes, _ids, _timers) AS d(tube, id, timer)
                WHERE d.tube = _t.number ORDER BY d.timer, d.id), _now) e;
    END LOOP;
END $$;

-- Moves what is due, about _limit tasks. The row with event 0 closes the answer: number is how many tasks and sessions
-- moved, count the next deadline, status 0; then one with event 6 whose count is this clock and number the microseconds this
-- took. Before them, one with event 6 and number -2 has the count of keys that were freed before their time, if any. One server at a time does it; for the others nothing is due. A caller that knows of nothing that waits for a moment
-- before _from may pass it. _seed is a random number for the delays of retry policies.
CREATE OR REPLACE FUNCTION taskyard.tick(_now bigint, _limit bigint, _from bigint, _seed bigint DEFAULT NULL)
RETURNS TABLE (event integer, number integer, name text, count bigint, status smallint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _moved bigint := 0;
    _found bigint;
    _session bytea;
    _begun bigint := taskyard.clock();
    _timed integer[];
    _due record;
    _keys record;
    _next bigint;
    _idle boolean := false;
BEGIN
    _now := coalesce(_now, _begun);
    IF _from IS NULL AND pg_try_advisory_xact_lock(1952543593) THEN
        PERFORM taskyard.fold_counts();
    END IF;
    WHILE pg_try_advisory_xact_lock(1952543593) AND _moved < _limit LOOP
        SELECT s.id INTO _session FROM taskyard.session s WHERE s.ends <= _now
            ORDER BY s.ends, s.id LIMIT 1;
        IF FOUND THEN
            PERFORM taskyard.lock_gates_of(_session);
        END IF;
        SELECT s.id INTO _session FROM taskyard.session s WHERE s.ends <= _now
            ORDER BY s.ends, s.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            SELECT 1 + count(*) INTO _found FROM taskyard.task t WHERE t.session = _session;
            _moved := _moved + _found;
            RETURN QUERY SELECT g.event, g.number, g.name, g.count, 0::smallint
                FROM taskyard.end_session(_session, _now) g;
            CONTINUE;
        END IF;
        SELECT array_agg(DISTINCT f.number) FILTER (WHERE f.timer <= _now), min(f.timer)
            INTO _timed, _next FROM taskyard.first_timers(_from) f;
        _idle := _timed IS NULL;
        EXIT WHEN _idle;
        _due := taskyard.due_tasks(_timed, coalesce(_from, -9223372036854775808), _now, _limit - _moved);
        EXIT WHEN _due.ids IS NULL;
        RETURN QUERY SELECT g.event, g.number, g.name, g.count, 0::smallint FROM taskyard.tick_tasks(
            _due.tubes, _due.ids, _due.leases, _due.states, _due.timers, _now, _seed) g;
        _moved := _moved + cardinality(_due.ids);
    END LOOP;
    IF NOT _idle THEN
        SELECT min(f.timer) INTO _next FROM taskyard.first_timers(_from) f;
    END IF;
    IF _moved < _limit AND pg_try_advisory_xact_lock(1952543593) THEN
        _moved := _moved + taskyard.tick_done(_now, _limit - _moved);
        _keys := taskyard.tick_ended_keys(_now, _limit - _moved);
        _moved := _moved + _keys.gone;
        RETURN QUERY SELECT 6, -2, NULL::text, _keys.early, 0::smallint WHERE _keys.early > 0;
    END IF;
    RETURN QUERY SELECT 0, _moved::integer, NULL::text, least(_next,
        (SELECT taskyard.timer(min(r.due)) FROM taskyard.retention r), (SELECT min(s.ends) FROM taskyard.session s
            WHERE s.ends IS NOT NULL AND s.ends < 9223372036854775807)), 0::smallint;
    RETURN QUERY SELECT 6, least(greatest(taskyard.clock() - _begun, 0), 2000000000)::integer, NULL::text, _now,
        0::smallint;
END $$;
