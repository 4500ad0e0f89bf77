-- Tubes that are queues of a contract: they have a permanent number, and can be renamed.
-- status: as for tubes, and 6 another tube has the number (its name is in `other`), 7 the tube has another number
-- already (which is in `other`).

-- As create_tube, with a number.
CREATE OR REPLACE FUNCTION taskyard.create_queue(
    _tube text, _kind text, _temporary boolean, _capacity bigint, _ttl bigint, _ttr bigint,
    _delay bigint, _pri bigint, _attempts_max bigint, _ttl_kills_taken boolean, _paused boolean,
    _tubes_max bigint, _semaphore text, _queue_num bigint,
    OUT status smallint, OUT number integer, OUT other text)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM taskyard.tube t WHERE t.name = _tube) THEN
        status := 3;
        RETURN;
    END IF;
    -- One at a time, as tubes are created.
    PERFORM pg_advisory_xact_lock(1952543594);
    SELECT t.name INTO other FROM taskyard.tube t WHERE t.queue_num = _queue_num;
    IF FOUND AND NOT EXISTS (SELECT 1 FROM taskyard.tube t WHERE t.name = _tube)
            AND (SELECT count(*) FROM taskyard.tube) < _tubes_max THEN
        status := 6;
        RETURN;
    END IF;
    SELECT c.status, c.number INTO status, number FROM taskyard.create_tube(_tube, _kind, _temporary,
        _capacity, _ttl, _ttr, _delay, _pri, _attempts_max, _ttl_kills_taken, _paused, _tubes_max,
        _semaphore) c;
    IF status = 0 THEN
        UPDATE taskyard.tube t SET queue_num = _queue_num WHERE t.number = create_queue.number;
    END IF;
END $$;

-- The same with the options for done tasks.
CREATE OR REPLACE FUNCTION taskyard.create_queue(
    _tube text, _kind text, _temporary boolean, _capacity bigint, _ttl bigint, _ttr bigint,
    _delay bigint, _pri bigint, _attempts_max bigint, _ttl_kills_taken boolean, _paused boolean,
    _tubes_max bigint, _semaphore text, _queue_num bigint, _keep_done bigint, _keep_done_max bigint,
    OUT status smallint, OUT number integer, OUT other text)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT c.status, c.number, c.other INTO status, number, other FROM taskyard.create_queue(_tube, _kind, _temporary,
        _capacity, _ttl, _ttr, _delay, _pri, _attempts_max, _ttl_kills_taken, _paused, _tubes_max, _semaphore,
        _queue_num) c;
    IF status = 0 THEN
        PERFORM taskyard.set_retention(number, _keep_done, _keep_done_max);
    END IF;
END $$;

-- Renames a tube and, if it has none, gives it a number.
CREATE OR REPLACE FUNCTION taskyard.name_tube(
    _tube text, _name text, _queue_num bigint, OUT status smallint, OUT other text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
BEGIN
    PERFORM pg_advisory_xact_lock(1952543594);
    PERFORM taskyard.lock_tube(least(_tube COLLATE "C", _name COLLATE "C"));
    PERFORM taskyard.lock_tube(greatest(_tube COLLATE "C", _name COLLATE "C"));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    IF NOT FOUND THEN
        status := 1;
        RETURN;
    END IF;
    IF _name <> _tube AND EXISTS (SELECT 1 FROM taskyard.tube t WHERE t.name = _name) THEN
        status := 3;
        RETURN;
    END IF;
    IF _t.queue_num <> _queue_num THEN
        status := 7;
        other := _t.queue_num::text;
        RETURN;
    END IF;
    SELECT t.name INTO other FROM taskyard.tube t
        WHERE t.queue_num = _queue_num AND t.number <> _t.number;
    IF FOUND THEN
        status := 6;
        RETURN;
    END IF;
    UPDATE taskyard.tube t SET name = _name, queue_num = coalesce(_queue_num, t.queue_num)
        WHERE t.number = _t.number;
    status := 0;
END $$;
