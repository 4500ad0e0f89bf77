-- Imports the content of another store. Tasks are put into a tube under a temporary name, which is renamed in the end.

-- The id that the next task of a tube gets.
CREATE OR REPLACE FUNCTION taskyard.next_id(_ids regclass) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _next bigint;
BEGIN
    EXECUTE format('SELECT last_value + is_called::integer FROM %s', _ids) INTO _next;
    RETURN _next;
END $$;

-- Imports tasks with their ids, which must be larger than those in the tube. States are those of the table, and 7 is done; a due
-- moment is that of a delayed task, when a done one ended, or since when a task is ready, if not since its put.
CREATE OR REPLACE FUNCTION taskyard.import_tasks(
    _tube text, _ids bigint[], _states smallint[], _pris bigint[], _created bigint[], _expires bigint[],
    _ttrs bigint[], _dues bigint[], _attempts bigint[], _previous_starts bigint[], _subqueues text[],
    _semaphore_priorities float8[], _metas bytea[], _payloads bytea[], _failures bytea[], _finished bytea[],
    _keys text[], _unique_for bigint[], _attempts_max bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _number integer;
BEGIN
    PERFORM taskyard.lock_tube(_tube);
    SELECT t.number INTO _number FROM taskyard.tube t WHERE t.name = _tube;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'tube ''%'' does not exist', _tube;
    END IF;
    IF _ids[1] <= greatest((SELECT k.id FROM taskyard.task k WHERE k.tube = _number ORDER BY k.id DESC LIMIT 1),
            (SELECT d.id FROM taskyard.done d WHERE d.tube = _number ORDER BY d.id DESC LIMIT 1)) THEN
        RAISE EXCEPTION 'task % of tube ''%'' has come already', _ids[1], _tube;
    END IF;
    INSERT INTO taskyard.task (tube, id, state, pri, created, expires, ttr, timer, attempts, previous_start,
            since, subqueue, semaphore_priority, meta, payload, failures, key, unique_for, attempts_max)
        SELECT _number, n.id, n.state, n.pri, n.created, n.expires, n.ttr,
            taskyard.timer(CASE WHEN n.state = 2 THEN n.due ELSE n.expires END), n.attempts, n.previous_start,
            CASE WHEN n.state = 0 THEN n.due END, n.subqueue, n.semaphore_priority, n.meta, n.payload,
            n.failures, n.key, n.unique_for, n.attempts_max
        FROM unnest(_ids, _states, _pris, _created, _expires, _ttrs, _dues, _attempts, _previous_starts,
            _subqueues, _semaphore_priorities, _metas, _payloads, _failures, _keys, _unique_for, _attempts_max)
            AS n(id, state, pri, created, expires, ttr, due, attempts, previous_start, subqueue,
                semaphore_priority, meta, payload, failures, key, unique_for, attempts_max)
        WHERE n.state <> 7;
    INSERT INTO taskyard.key (tube, key, id)
        SELECT _number, n.key, n.id FROM unnest(_ids, _states, _keys) AS n(id, state, key)
        WHERE n.state <> 7 AND n.key IS NOT NULL;
    IF 7 = ANY (_states) THEN
        INSERT INTO taskyard.done (tube, id, ended, pri, created, expires, ttr, attempts, previous_start, subqueue,
                meta, payload, failures, finished, key, unique_for, attempts_max)
            SELECT _number, n.id, n.due, n.pri, n.created, n.expires, n.ttr, n.attempts, n.previous_start, n.subqueue,
                n.meta, n.payload, n.failures, n.finished, n.key, n.unique_for, n.attempts_max
            FROM unnest(_ids, _states, _pris, _created, _expires, _ttrs, _dues, _attempts, _previous_starts,
                _subqueues, _metas, _payloads, _failures, _finished, _keys, _unique_for, _attempts_max)
                AS n(id, state, pri, created, expires, ttr, due, attempts, previous_start, subqueue, meta, payload,
                    failures, finished, key, unique_for, attempts_max)
            WHERE n.state = 7;
        -- The tube may have stopped keeping them.
        INSERT INTO taskyard.retention (tube) VALUES (_number) ON CONFLICT (tube) DO UPDATE SET due = 0, searched = 0;
    END IF;
    INSERT INTO taskyard.count (tube, ready, delayed, buried, kept)
        SELECT _number, count(*) FILTER (WHERE s.state = 0), count(*) FILTER (WHERE s.state = 2),
            count(*) FILTER (WHERE s.state IN (3, 4)), nullif(count(*) FILTER (WHERE s.state = 7), 0)
        FROM unnest(_states) AS s(state);
END $$;

-- Adds keys of ended tasks, after the tasks of the tube. Those that are there already are skipped.
CREATE OR REPLACE FUNCTION taskyard.import_ended_keys(_tube text, _ids bigint[], _keys text[], _until bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _number integer;
    _added bigint;
    _held text;
BEGIN
    PERFORM taskyard.lock_tube(_tube);
    SELECT t.number INTO _number FROM taskyard.tube t WHERE t.name = _tube;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'tube ''%'' does not exist', _tube;
    END IF;
    INSERT INTO taskyard.key (tube, key, id, until)
        SELECT _number, n.key, n.id, n.until FROM unnest(_ids, _keys, _until) AS n(id, key, until)
        ON CONFLICT (tube, key) DO NOTHING;
    GET DIAGNOSTICS _added = ROW_COUNT;
    SELECT n.key INTO _held FROM unnest(_ids, _keys) AS n(id, key)
        CROSS JOIN LATERAL (SELECT k.id, k.until FROM taskyard.key k WHERE k.tube = _number AND k.key = n.key OFFSET 0) k
        WHERE k.id <> n.id OR k.until IS NULL LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'cannot import key ''%'' into tube ''%'': it is held', _held, _tube;
    END IF;
    IF _added > 0 THEN
        INSERT INTO taskyard.ended_keys (tube, until, keys)
            SELECT _number, n.until, array_agg(n.key) FROM unnest(_keys, _until) AS n(key, until) GROUP BY n.until;
        INSERT INTO taskyard.count (tube, ended) VALUES (_number, _added);
    END IF;
END $$;

-- The same without keys, for servers of earlier versions.
CREATE OR REPLACE FUNCTION taskyard.import_tasks(
    _tube text, _ids bigint[], _states smallint[], _pris bigint[], _created bigint[], _expires bigint[],
    _ttrs bigint[], _dues bigint[], _attempts bigint[], _previous_starts bigint[], _subqueues text[],
    _semaphore_priorities float8[], _metas bytea[], _payloads bytea[], _failures bytea[], _finished bytea[])
RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT taskyard.import_tasks(_tube, _ids, _states, _pris, _created, _expires, _ttrs, _dues, _attempts,
        _previous_starts, _subqueues, _semaphore_priorities, _metas, _payloads, _failures, _finished, NULL, NULL, NULL)
$$;

-- The same without done tasks, for servers of earlier versions.
CREATE OR REPLACE FUNCTION taskyard.import_tasks(
    _tube text, _ids bigint[], _states smallint[], _pris bigint[], _created bigint[], _expires bigint[],
    _ttrs bigint[], _dues bigint[], _attempts bigint[], _previous_starts bigint[], _subqueues text[],
    _semaphore_priorities float8[], _metas bytea[], _payloads bytea[], _failures bytea[])
RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT taskyard.import_tasks(_tube, _ids, _states, _pris, _created, _expires, _ttrs, _dues, _attempts,
        _previous_starts, _subqueues, _semaphore_priorities, _metas, _payloads, _failures, NULL)
$$;

-- The same without failures, for servers of earlier versions.
CREATE OR REPLACE FUNCTION taskyard.import_tasks(
    _tube text, _ids bigint[], _states smallint[], _pris bigint[], _created bigint[], _expires bigint[],
    _ttrs bigint[], _dues bigint[], _attempts bigint[], _previous_starts bigint[], _subqueues text[],
    _semaphore_priorities float8[], _metas bytea[], _payloads bytea[])
RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT taskyard.import_tasks(_tube, _ids, _states, _pris, _created, _expires, _ttrs, _dues, _attempts,
        _previous_starts, _subqueues, _semaphore_priorities, _metas, _payloads, NULL)
$$;

-- Creates a semaphore without tasks.
CREATE OR REPLACE FUNCTION taskyard.import_semaphore(
    _key text, _active integer, _try_release integer, _margin float8, _min_hold bigint, _cool_down bigint,
    _max_revoking integer, _revoke_grace bigint, _force boolean, _lease bigint, _ack_timeout bigint,
    _shed boolean, _drop_expired boolean, _grant_seq bigint, _recheck bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _id integer;
BEGIN
    INSERT INTO taskyard.semaphore AS s (key, active, try_release, margin, min_hold, cool_down, max_revoking,
            revoke_grace, force, lease, ack_timeout, shed, drop_expired)
        VALUES (_key, _active, _try_release, _margin, _min_hold, _cool_down, _max_revoking, _revoke_grace,
            _force, _lease, _ack_timeout, _shed, _drop_expired)
        RETURNING s.id INTO _id;
    INSERT INTO taskyard.semaphore_state (semaphore_id, grant_seq) VALUES (_id, _grant_seq);
    IF _recheck IS NOT NULL THEN
        INSERT INTO taskyard.semaphore_recheck VALUES (_id, _recheck);
    END IF;
END $$;

-- Gives a tube the name, options and numbers of the one that it copies. There are twelve counters, as in their table.
CREATE OR REPLACE FUNCTION taskyard.end_import_tube(
    _came text, _tube text, _temporary boolean, _capacity bigint, _paused boolean, _semaphore text,
    _queue_num bigint, _next_id bigint, _counters bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _gate integer;
BEGIN
    PERFORM pg_advisory_xact_lock(1952543594);
    PERFORM taskyard.lock_tube(least(_came COLLATE "C", _tube COLLATE "C"));
    PERFORM taskyard.lock_tube(greatest(_came COLLATE "C", _tube COLLATE "C"));
    IF _semaphore IS NOT NULL THEN
        SELECT s.id INTO STRICT _gate FROM taskyard.semaphore s WHERE s.key = _semaphore;
    END IF;
    UPDATE taskyard.tube t SET name = _tube, temporary = _temporary, capacity = _capacity, paused = _paused,
        semaphore = _gate, queue_num = _queue_num WHERE t.name = _came RETURNING t.* INTO _t;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'tube ''%'' does not exist', _came;
    END IF;
    -- What fits into the number of a task in a semaphore together.
    IF _gate IS NOT NULL AND (_t.number >= 1048576 OR _next_id >= 8796093022208) THEN
        RAISE EXCEPTION 'the numbers of tube ''%'' are too large for one with a semaphore', _tube;
    END IF;
    PERFORM setval(_t.ids, greatest(_next_id, taskyard.next_id(_t.ids)), false);
    DELETE FROM taskyard.counter c WHERE c.tube = _t.number;
    PERFORM taskyard.add_counters(ARRAY[_t.number], _counters, '{}');
END $$;

-- Gives a tube the retry policy, the rate limit and the bucket of the one that it copies.
CREATE OR REPLACE FUNCTION taskyard.end_import_pace(
    _tube text, _retry_delay bigint, _retry_factor bigint, _retry_delay_max bigint, _retry_jitter bigint,
    _retry_lost boolean, _rate_count bigint, _rate_per bigint, _rate_burst bigint, _level bigint, _at bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _number integer;
BEGIN
    SELECT t.number INTO STRICT _number FROM taskyard.tube t WHERE t.name = _tube;
    PERFORM taskyard.set_retry(_number, _retry_delay, _retry_factor, _retry_delay_max, _retry_jitter, _retry_lost);
    PERFORM taskyard.set_rate(_number, _rate_count, _rate_per, _rate_burst, 0);
    IF _level IS NOT NULL THEN
        UPDATE taskyard.bucket b SET level = _level, at = _at WHERE b.tube = _number;
    END IF;
END $$;

-- Imports the holders and waiting tasks of semaphores, in the order of arrival, with the names of tubes for their tasks. A
-- moment is when a delayed task waits again, or when a holder that was asked to release is asked again.
CREATE OR REPLACE FUNCTION taskyard.import_places(
    _keys text[], _tubes text[], _tasks bigint[], _priorities float8[], _statuses text[], _enqueued bigint[],
    _grants bigint[], _granted bigint[], _lease_until bigint[], _ack_by bigint[], _moments bigint[],
    _pinned boolean[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO taskyard.semaphore_task (semaphore_id, task_id, priority, seq, status, enqueued, grant_no, granted,
            lease_until, ack_by, moment, pinned)
        SELECT s.id, coalesce(taskyard.gated(t.number, n.task), n.task), n.priority, n.seq,
            n.status::taskyard.semaphore_status, n.enqueued, n.grant_no, n.granted, n.lease_until, n.ack_by,
            n.moment, n.pinned
        FROM (SELECT nextval('taskyard.semaphore_seq') AS seq, u.* FROM unnest(_keys, _tubes, _tasks, _priorities,
            _statuses, _enqueued, _grants, _granted, _lease_until, _ack_by, _moments, _pinned)
            AS u(key, tube, task, priority, status, enqueued, grant_no, granted, lease_until, ack_by, moment,
                pinned)) n
        JOIN taskyard.semaphore s ON s.key = n.key
        LEFT JOIN taskyard.tube t ON t.name = n.tube;
    UPDATE taskyard.semaphore_state t SET acquired = c.acquired, revoking = c.revoking, declines = c.declines
        FROM (SELECT p.semaphore_id, count(*) FILTER (WHERE p.status = 'ACQUIRED') AS acquired,
                count(*) FILTER (WHERE p.status = 'TRY_RELEASE') AS revoking, bool_or(p.pinned) AS declines
            FROM taskyard.semaphore_task p JOIN taskyard.semaphore s ON s.id = p.semaphore_id
            WHERE s.key = ANY (_keys) GROUP BY p.semaphore_id) c
        WHERE t.semaphore_id = c.semaphore_id;
END $$;

-- Imports events, by number; they keep their numbers if none of these is used yet.
CREATE OR REPLACE FUNCTION taskyard.import_events(
    _keys text[], _ids bigint[], _tubes text[], _tasks bigint[], _grants bigint[], _kinds text[],
    _attempts integer[], _next_at bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _numbers regclass := pg_get_serial_sequence('taskyard.semaphore_event', 'id')::regclass;
    _keep boolean;
BEGIN
    IF cardinality(_ids) = 0 THEN
        RETURN;
    END IF;
    _keep := _ids[1] >= taskyard.next_id(_numbers);
    INSERT INTO taskyard.semaphore_event (id, semaphore_id, task_id, grant_no, kind, attempts, next_at)
        OVERRIDING SYSTEM VALUE
        SELECT CASE WHEN _keep THEN n.id ELSE nextval(_numbers) END, s.id,
            coalesce(taskyard.gated(t.number, n.task), n.task), n.grant_no, n.kind, n.attempts, n.next_at
        FROM unnest(_keys, _ids, _tubes, _tasks, _grants, _kinds, _attempts, _next_at)
            AS n(key, id, tube, task, grant_no, kind, attempts, next_at)
        JOIN taskyard.semaphore s ON s.key = n.key
        LEFT JOIN taskyard.tube t ON t.name = n.tube;
    IF _keep THEN
        PERFORM setval(_numbers, _ids[cardinality(_ids)]);
    END IF;
END $$;

-- Completes an import: a task without a grant of its tube's semaphore is not ready, and sub-queues get their heads. Lease
-- numbers continue from _next_lease.
CREATE OR REPLACE FUNCTION taskyard.end_import(_tubes text[], _next_lease bigint, _now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _moved bigint;
    _loose bigint[];
BEGIN
    IF _next_lease > taskyard.next_id('taskyard.lease') THEN
        PERFORM setval('taskyard.lease', _next_lease, false);
    END IF;
    FOR _t IN SELECT * FROM taskyard.tube t WHERE t.name = ANY (_tubes) ORDER BY t.semaphore, t.number LOOP
        IF _t.semaphore IS NOT NULL THEN
            UPDATE taskyard.task k SET state = 6 WHERE k.tube = _t.number AND k.state = 0
                AND NOT EXISTS (SELECT 1 FROM taskyard.semaphore_task p WHERE p.semaphore_id = _t.semaphore
                    AND p.task_id = taskyard.gated(_t.number, k.id)
                    AND p.status IN ('ACQUIRED', 'TRY_RELEASE'));
            GET DIAGNOSTICS _moved = ROW_COUNT;
            INSERT INTO taskyard.count (tube, ready, delayed) VALUES (_t.number, -_moved, _moved);
        END IF;
        IF _t.has_subqueues THEN
            INSERT INTO taskyard.subqueue (tube, key, head_pri, head_id)
                SELECT DISTINCT ON (k.subqueue) _t.number, k.subqueue,
                    CASE WHEN k.state = 0 THEN k.pri END, CASE WHEN k.state = 0 THEN k.id END
                FROM taskyard.task k WHERE k.tube = _t.number
                ORDER BY k.subqueue, k.state <> 0, k.pri, k.id;
        END IF;
        IF _t.semaphore IS NOT NULL THEN
            -- Tasks that the semaphore does not have, or should not have.
            _loose := ARRAY(SELECT a.id FROM taskyard.gate_audit a WHERE a.tube = _t.name ORDER BY a.id);
            PERFORM taskyard.update_gate(_t, _loose, _now);
        END IF;
    END LOOP;
END $$;
