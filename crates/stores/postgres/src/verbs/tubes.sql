-- Creates, changes and drops tubes. status: 0 done, 1 no such tube, 3 it exists already, 4 too many tubes, 5 it has taken tasks,
-- 8 no such semaphore.

-- Locks a tube exclusively until the end of the transaction. Operations on its tasks take the same lock shared.
CREATE OR REPLACE FUNCTION taskyard.lock_tube(_tube text) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT pg_advisory_xact_lock(1952543595, hashtext(_tube))
$$;

CREATE OR REPLACE FUNCTION taskyard.create_tube(
    _tube text, _kind text, _temporary boolean, _capacity bigint, _ttl bigint, _ttr bigint,
    _delay bigint, _pri bigint, _attempts_max bigint, _ttl_kills_taken boolean, _paused boolean,
    _tubes_max bigint, _semaphore text, OUT status smallint, OUT number integer)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _ids text;
    _gate integer;
BEGIN
    IF EXISTS (SELECT 1 FROM taskyard.tube t WHERE t.name = _tube) THEN
        status := 3;
        RETURN;
    END IF;
    -- One at a time, so that the number of tubes is exact.
    PERFORM pg_advisory_xact_lock(1952543594);
    PERFORM taskyard.lock_tube(_tube);
    IF EXISTS (SELECT 1 FROM taskyard.tube t WHERE t.name = _tube) THEN
        status := 3;
        RETURN;
    END IF;
    IF (SELECT count(*) FROM taskyard.tube) >= _tubes_max THEN
        status := 4;
        RETURN;
    END IF;
    IF _semaphore IS NOT NULL THEN
        SELECT s.id INTO _gate FROM taskyard.semaphore s WHERE s.key = _semaphore;
        IF NOT FOUND THEN
            status := 8;
            RETURN;
        END IF;
    END IF;
    number := nextval('taskyard.tube_number');
    -- What fits into one number beside the id of a task.
    IF _gate IS NOT NULL AND number >= 1048576 THEN
        RAISE EXCEPTION 'too many tubes were created in this database for one with a semaphore';
    END IF;
    _ids := 'taskyard.ids_' || number;
    EXECUTE format('CREATE SEQUENCE %s MINVALUE 0 START 0', _ids);
    INSERT INTO taskyard.tube (number, name, kind, temporary, capacity, ttl, ttr, delay, pri,
            attempts_max, ttl_kills_taken, paused, ids, semaphore)
        VALUES (create_tube.number, _tube, _kind, _temporary, _capacity, _ttl, _ttr, _delay, _pri,
            _attempts_max, _ttl_kills_taken, _paused, _ids::regclass, _gate);
    status := 0;
END $$;

-- Shows one tube or, with NULL, all. There is no row for a tube that does not exist. A plan costs more than
-- the answer, so one plan is kept for all tubes.
CREATE OR REPLACE FUNCTION taskyard.show_tubes(_tube text, _now bigint) RETURNS SETOF taskyard.tube_info
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY SELECT t.number, t.name, t.kind, t.temporary, t.capacity, t.ttl, t.ttr, t.delay, t.pri,
        t.attempts_max, t.ttl_kills_taken, t.paused,
        coalesce(c.ready, 0), coalesce(c.taken, 0), coalesce(c.buried, 0), coalesce(c.delayed, 0),
        least(h.heads, r.tokens),
        least(taskyard.next_timer(t.number, -9223372036854775808), CASE WHEN h.heads > 0 THEN r.next END),
        (SELECT s.key::text FROM taskyard.semaphore s WHERE s.id = t.semaphore),
        t.queue_num,
        CASE WHEN c.takeable > 0 THEN taskyard.oldest_ready(t.number, t.has_subqueues) END,
        t.keep_done, t.keep_done_max, coalesce(c.kept, 0), t.retry_delay, t.retry_factor, t.retry_delay_max, t.retry_jitter,
        t.retry_lost, t.rate_count, t.rate_per, t.rate_burst
    FROM taskyard.tube t
    CROSS JOIN LATERAL (
        SELECT sum(k.ready + k.passed)::bigint AS ready, sum(k.ready)::bigint AS takeable,
            sum(k.taken)::bigint AS taken, sum(k.buried)::bigint AS buried,
            sum(k.delayed)::bigint AS delayed, sum(k.kept)::bigint AS kept
        FROM taskyard.count k WHERE k.tube = t.number) c
    CROSS JOIN LATERAL (SELECT CASE
            WHEN t.paused THEN 0
            WHEN t.has_subqueues THEN (SELECT count(*) FROM taskyard.subqueue s
                WHERE s.tube = t.number AND s.head_id IS NOT NULL)
            ELSE coalesce(c.takeable, 0)
        END AS heads) h
    LEFT JOIN LATERAL taskyard.tokens(t, coalesce(_now, taskyard.clock())) r ON t.rate_count IS NOT NULL
    WHERE _tube IS NULL OR t.name = _tube
    ORDER BY t.name;
END $$;

-- The same by this database's clock.
CREATE OR REPLACE FUNCTION taskyard.show_tubes(_tube text) RETURNS SETOF taskyard.tube_info
LANGUAGE sql VOLATILE AS $$
    SELECT * FROM taskyard.show_tubes(_tube, NULL)
$$;

-- Changes a tube and shows it. The change consists of flags and values.
CREATE OR REPLACE FUNCTION taskyard.alter_tube(
    _tube text, _paused boolean, _set_capacity boolean, _capacity bigint, _set_ttl boolean,
    _ttl bigint, _set_ttr boolean, _ttr bigint, _set_delay boolean, _delay bigint, _pri bigint,
    _set_attempts_max boolean, _attempts_max bigint, _set_keep_done boolean, _keep_done bigint,
    _keep_done_max bigint)
RETURNS SETOF taskyard.tube_info LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM taskyard.lock_tube(_tube);
    UPDATE taskyard.tube t SET
        paused = coalesce(_paused, t.paused),
        capacity = CASE WHEN _set_capacity THEN _capacity ELSE t.capacity END,
        ttl = CASE WHEN _set_ttl THEN _ttl ELSE t.ttl END,
        ttr = CASE WHEN _set_ttr THEN _ttr ELSE t.ttr END,
        delay = CASE WHEN _set_delay THEN _delay ELSE t.delay END,
        pri = coalesce(_pri, t.pri),
        attempts_max = CASE WHEN _set_attempts_max THEN _attempts_max ELSE t.attempts_max END
        WHERE t.name = _tube;
    IF _set_keep_done OR _keep_done_max IS NOT NULL THEN
        PERFORM taskyard.set_retention(t.number, CASE WHEN _set_keep_done THEN _keep_done ELSE t.keep_done END,
            coalesce(_keep_done_max, t.keep_done_max)) FROM taskyard.tube t WHERE t.name = _tube;
    END IF;
    RETURN QUERY SELECT * FROM taskyard.show_tubes(_tube);
END $$;

-- The same for servers of earlier versions.
CREATE OR REPLACE FUNCTION taskyard.alter_tube(
    _tube text, _paused boolean, _set_capacity boolean, _capacity bigint, _set_ttl boolean,
    _ttl bigint, _set_ttr boolean, _ttr bigint, _set_delay boolean, _delay bigint, _pri bigint,
    _set_attempts_max boolean, _attempts_max bigint)
RETURNS SETOF taskyard.tube_info LANGUAGE sql VOLATILE AS $$
    SELECT * FROM taskyard.alter_tube(_tube, _paused, _set_capacity, _capacity, _set_ttl, _ttl, _set_ttr, _ttr,
        _set_delay, _delay, _pri, _set_attempts_max, _attempts_max, false, NULL, NULL)
$$;

CREATE OR REPLACE FUNCTION taskyard.drop_tube(
    _tube text, _now bigint, OUT status smallint, OUT number integer, OUT wakeup bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _stood bigint[];
BEGIN
    PERFORM taskyard.lock_tube(_tube);
    SELECT t.* INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    IF NOT FOUND THEN
        status := 1;
        RETURN;
    END IF;
    number := _t.number;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
    END IF;
    IF EXISTS (SELECT 1 FROM taskyard.task t WHERE t.tube = drop_tube.number AND t.state = 1) THEN
        status := 5;
        RETURN;
    END IF;
    IF _t.semaphore IS NOT NULL THEN
        _stood := ARRAY(SELECT t.id FROM taskyard.task t WHERE t.tube = drop_tube.number);
    END IF;
    DELETE FROM taskyard.task t WHERE t.tube = drop_tube.number;
    DELETE FROM taskyard.subqueue s WHERE s.tube = drop_tube.number;
    DELETE FROM taskyard.done d WHERE d.tube = drop_tube.number;
    DELETE FROM taskyard.key k WHERE k.tube = drop_tube.number;
    DELETE FROM taskyard.ended_keys e WHERE e.tube = drop_tube.number;
    DELETE FROM taskyard.bucket b WHERE b.tube = drop_tube.number;
    DELETE FROM taskyard.retention r WHERE r.tube = drop_tube.number;
    DELETE FROM taskyard.count c WHERE c.tube = drop_tube.number;
    DELETE FROM taskyard.tube t WHERE t.number = drop_tube.number;
    EXECUTE 'DROP SEQUENCE ' || _t.ids::text;
    IF _stood IS NOT NULL THEN
        wakeup := taskyard.update_gate(_t, _stood, _now);
    END IF;
    status := 0;
END $$;

CREATE OR REPLACE FUNCTION taskyard.truncate_tube(
    _tube text, _now bigint, OUT status smallint, OUT number integer, OUT room bigint, OUT wakeup bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _stood bigint[];
BEGIN
    PERFORM taskyard.lock_tube(_tube);
    SELECT t.* INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    IF NOT FOUND THEN
        status := 1;
        RETURN;
    END IF;
    number := _t.number;
    room := _t.capacity;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
        _stood := ARRAY(SELECT t.id FROM taskyard.task t WHERE t.tube = truncate_tube.number);
    END IF;
    DELETE FROM taskyard.task t WHERE t.tube = truncate_tube.number;
    DELETE FROM taskyard.subqueue s WHERE s.tube = truncate_tube.number;
    DELETE FROM taskyard.done d WHERE d.tube = truncate_tube.number;
    DELETE FROM taskyard.key k WHERE k.tube = truncate_tube.number;
    DELETE FROM taskyard.ended_keys e WHERE e.tube = truncate_tube.number;
    DELETE FROM taskyard.count c WHERE c.tube = truncate_tube.number;
    IF _stood IS NOT NULL THEN
        wakeup := taskyard.update_gate(_t, _stood, _now);
    END IF;
    status := 0;
END $$;

-- For servers of versions before semaphores.
CREATE OR REPLACE FUNCTION taskyard.create_tube(
    _tube text, _kind text, _temporary boolean, _capacity bigint, _ttl bigint, _ttr bigint,
    _delay bigint, _pri bigint, _attempts_max bigint, _ttl_kills_taken boolean, _paused boolean,
    _tubes_max bigint, OUT status smallint, OUT number integer)
LANGUAGE sql VOLATILE AS $$
    SELECT * FROM taskyard.create_tube(_tube, _kind, _temporary, _capacity, _ttl, _ttr, _delay, _pri,
        _attempts_max, _ttl_kills_taken, _paused, _tubes_max, NULL)
$$;

CREATE OR REPLACE FUNCTION taskyard.drop_tube(_tube text, OUT status smallint, OUT number integer)
LANGUAGE sql VOLATILE AS $$
    SELECT d.status, d.number FROM taskyard.drop_tube(_tube, NULL) d
$$;

CREATE OR REPLACE FUNCTION taskyard.truncate_tube(
    _tube text, OUT status smallint, OUT number integer, OUT room bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT d.status, d.number, d.room FROM taskyard.truncate_tube(_tube, NULL) d
$$;
