-- Ends deliveries without a command of their holder. Rows of events have what is to be counted in which tube: 1 a delay
-- ended, 2 a lease ended, 3 attempts were used up, 4 expired, 5 released. 7 is how much room a tube has now. 0 closes the
-- answer.

DROP FUNCTION IF EXISTS taskyard.give_back(integer[], bigint[], bigint[], integer);
DROP FUNCTION IF EXISTS taskyard.give_back(integer[], bigint[], bigint[], integer, bigint);
DROP FUNCTION IF EXISTS taskyard.give_back(integer[], bigint[], bigint[], integer, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.release_deliveries(integer[], bigint[], bigint[], integer, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.release_deliveries(integer[], bigint[], bigint[], integer, bigint, bytea, bigint);

-- Releases these deliveries of any tubes, as far as they still exist: another delivery of the same task has another lease.
-- With _over only those whose lease ends by then: a touch keeps the number of the lease. With event 2 the caller updates the
-- semaphores, and tasks of a tube whose policy says so are delayed, with the random number _seed. With _error each is stored as a failure.
CREATE OR REPLACE FUNCTION taskyard.release_deliveries(
    _tubes integer[], _ids bigint[], _leases bigint[], _event integer, _over bigint, _error bytea,
    _now bigint, _seed bigint DEFAULT NULL)
RETURNS TABLE (event integer, number integer, name text, count bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _own bigint[];
    _own_leases bigint[];
    _keys text[];
    _used_up bigint;
    _delayed bigint;
BEGIN
    _now := coalesce(_now, taskyard.clock());
    PERFORM taskyard.lock_gates(_tubes);
    FOR _t IN SELECT * FROM taskyard.tube t WHERE t.number = ANY (_tubes) ORDER BY t.name LOOP
        SELECT array_agg(d.id ORDER BY d.id), array_agg(d.lease ORDER BY d.id) INTO _own, _own_leases
            FROM unnest(_tubes, _ids, _leases) AS d(tube, id, lease) WHERE d.tube = _t.number;
        IF _t.has_subqueues THEN
            _keys := taskyard.lock_subqueues_of(_t.number, _own);
        END IF;
        PERFORM taskyard.lock_tasks(_t.number, _own);
        WITH back AS (
            UPDATE taskyard.task t SET
                attempts = least(t.attempts + 1, 4294967295),
                previous_start = coalesce(t.since, t.created),
                -- A task whose lease ended is ready since that moment, not since the tick that noticed it.
                since = CASE WHEN _over IS NULL THEN _now ELSE t.timer END,
                failures = CASE WHEN _error IS NULL THEN t.failures ELSE taskyard.with_failure(
                    t.failures, t.state, t.start, t.attempts, t.worker,
                    CASE WHEN _over IS NULL THEN _now ELSE t.timer END, _error) END,
                state = CASE WHEN k.used_up THEN 4 WHEN k.delay > 0 THEN 2 ELSE 0 END,
                expires = CASE WHEN k.used_up THEN t.expires ELSE taskyard.later(t.expires, k.delay) END,
                timer = taskyard.timer(CASE WHEN k.used_up OR k.delay = 0 THEN t.expires
                    ELSE taskyard.later(_now, k.delay) END),
                lease = NULL, start = NULL, explicit = NULL, session = NULL
            FROM unnest(_own, _own_leases) AS d(id, lease)
            CROSS JOIN LATERAL (SELECT k.ctid AS place, least(k.attempts + 1, 4294967295)
                    >= coalesce(k.attempts_max, _t.attempts_max, 4294967295) AS used_up,
                    CASE WHEN _event = 2 AND _t.retry_lost
                        THEN taskyard.retry_delay(_t, k.attempts + 1, _seed, k.id) ELSE 0 END AS delay
                FROM taskyard.task k WHERE k.tube = _t.number AND k.id = d.id OFFSET 0) k
            WHERE t.ctid = k.place AND t.lease = d.lease AND (_over IS NULL OR t.timer <= _over)
            RETURNING t.state)
        SELECT count(*), count(*) FILTER (WHERE b.state = 4), count(*) FILTER (WHERE b.state = 2)
            INTO count, _used_up, _delayed FROM back b;
        INSERT INTO taskyard.count (tube, ready, taken, buried, delayed)
            SELECT _t.number, release_deliveries.count - _used_up - _delayed, -release_deliveries.count, _used_up, _delayed
            WHERE release_deliveries.count > 0;
        IF _t.has_subqueues THEN
            PERFORM taskyard.set_subqueue_heads(_t.number, _keys);
        END IF;
        IF _t.semaphore IS NOT NULL AND _event <> 2 THEN
            PERFORM taskyard.update_gate(_t, _own, _now);
        END IF;
        event := _event;
        number := _t.number;
        name := _t.name;
        RETURN NEXT;
        event := 3;
        count := _used_up;
        RETURN NEXT;
    END LOOP;
END $$;

-- Releases every taken task of a tube. status: 0 done, 1 no such tube.
CREATE OR REPLACE FUNCTION taskyard.release_all(_tube text, _now bigint)
RETURNS TABLE (event integer, number integer, name text, count bigint, status smallint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _number integer;
    _ids bigint[];
    _leases bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT t.number INTO _number FROM taskyard.tube t WHERE t.name = _tube;
    SELECT array_agg(t.id), array_agg(t.lease) INTO _ids, _leases
        FROM taskyard.task t WHERE t.tube = _number AND t.state = 1;
    IF _ids IS NOT NULL THEN
        RETURN QUERY SELECT g.event, g.number, g.name, g.count, 0::smallint
        FROM taskyard.release_deliveries(array_fill(_number, ARRAY[cardinality(_ids)]), _ids, _leases, 5,
            NULL, NULL, _now) g;
    END IF;
    RETURN QUERY SELECT 0, _number, NULL::text, 0::bigint,
        (CASE WHEN _number IS NULL THEN 1 ELSE 0 END)::smallint;
END $$;

-- For servers of versions before semaphores.
CREATE OR REPLACE FUNCTION taskyard.release_all(_tube text)
RETURNS TABLE (event integer, number integer, name text, count bigint, status smallint)
LANGUAGE sql VOLATILE AS $$
    SELECT * FROM taskyard.release_all(_tube, NULL)
$$;

-- Releases what a session holds, as failed deliveries, and deletes the session. The errors say whether its last server was declared
-- dead (see taskyard.heartbeat).
CREATE OR REPLACE FUNCTION taskyard.end_session(_session bytea, _now bigint)
RETURNS TABLE (event integer, number integer, name text, count bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _tubes integer[];
    _ids bigint[];
    _leases bigint[];
    _error bytea := '{{SESSION_ENDED}}';
BEGIN
    SELECT array_agg(t.tube), array_agg(t.id), array_agg(t.lease) INTO _tubes, _ids, _leases
        FROM taskyard.task t WHERE t.session = _session;
    IF _ids IS NOT NULL THEN
        IF EXISTS (SELECT 1 FROM taskyard.connection c
                WHERE c.session = _session AND c.server = '' AND c.count = 0) THEN
            _error := '{{SERVER_LOST}}';
        END IF;
        RETURN QUERY SELECT * FROM taskyard.release_deliveries(_tubes, _ids, _leases, 5, NULL,
            _error, _now);
    END IF;
    DELETE FROM taskyard.connection c WHERE c.session = _session;
    DELETE FROM taskyard.session s WHERE s.id = _session;
END $$;
