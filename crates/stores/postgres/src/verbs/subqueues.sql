-- Sub-queues: at most one task of each runs.

-- Creates the missing rows of these sub-queues of a tube.
CREATE OR REPLACE FUNCTION taskyard.make_subqueues(_number integer, _keys text[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO taskyard.subqueue (tube, key)
        SELECT _number, k.key FROM unnest(_keys) AS k(key)
        WHERE NOT EXISTS (SELECT 1 FROM taskyard.subqueue s
            WHERE s.tube = _number AND s.key = k.key)
        ORDER BY k.key COLLATE "C"
        ON CONFLICT DO NOTHING
$$;

-- Locks the rows of these sub-queues of a tube, always in the order of their keys. Missing ones are created before any is
-- locked: the creation may have to wait for another transaction that creates the same one.
CREATE OR REPLACE FUNCTION taskyard.lock_subqueues(_number integer, _keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _locked bigint;
BEGIN
    LOOP
        PERFORM taskyard.make_subqueues(_number, _keys);
        SELECT count(*) INTO _locked
            FROM (SELECT u.key FROM unnest(_keys) AS u(key) ORDER BY u.key COLLATE "C") k
            CROSS JOIN LATERAL (SELECT 1 FROM taskyard.subqueue s
                WHERE s.tube = _number AND s.key = k.key FOR UPDATE OFFSET 0) s;
        -- Otherwise some were deleted while this waited for them.
        EXIT WHEN _locked = cardinality(_keys);
    END LOOP;
END $$;

-- Takes the locks of a put: the row of a tube with a capacity, and the sub-queues _keys. Returns whether it could: with the
-- setting taskyard.lock_wait it waits for other transactions no longer than that, and then the locks are released.
CREATE OR REPLACE FUNCTION taskyard.lock_for_put(_number integer, _capacity bigint, _keys text[])
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _wait text := nullif(current_setting('taskyard.lock_wait', true), '');
    _before text := current_setting('lock_timeout');
BEGIN
    IF _wait IS NOT NULL THEN
        PERFORM set_config('lock_timeout', _wait, true);
    END IF;
    BEGIN
        IF _capacity IS NOT NULL THEN
            PERFORM 1 FROM taskyard.tube t WHERE t.number = _number FOR NO KEY UPDATE;
        END IF;
        IF _keys IS NOT NULL THEN
            PERFORM taskyard.lock_subqueues(_number, _keys);
        END IF;
    EXCEPTION WHEN lock_not_available THEN
        IF _wait IS NULL THEN
            RAISE;
        END IF;
        PERFORM set_config('lock_timeout', _before, true);
        RETURN false;
    END;
    IF _wait IS NOT NULL THEN
        PERFORM set_config('lock_timeout', _before, true);
    END IF;
    RETURN true;
END $$;

-- Takes all locks of a batch in a tube: its row, if it has a capacity and there are puts, then the sub-queues of the puts, _keys,
-- and of these tasks. Only the former are created; the put that follows sets their heads.
CREATE OR REPLACE FUNCTION taskyard.lock_tube(_tube text, _keys text[], _ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    IF _t.semaphore IS NOT NULL THEN
        PERFORM taskyard.lock_gate(_t.semaphore);
    END IF;
    IF _t.capacity IS NOT NULL AND _keys IS NOT NULL
        AND NOT taskyard.lock_for_put(_t.number, _t.capacity, NULL)
    THEN
        -- The put will return that.
        RETURN;
    END IF;
    IF _t.has_subqueues THEN
        _keys := ARRAY(SELECT DISTINCT coalesce(k.key, 'nil') FROM unnest(_keys) AS k(key));
        PERFORM taskyard.make_subqueues(_t.number, _keys);
        _keys := _keys || ARRAY(SELECT t.subqueue FROM unnest(_ids) AS i(id)
            CROSS JOIN LATERAL (SELECT k.subqueue FROM taskyard.task k
                WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t);
        PERFORM 1 FROM (SELECT DISTINCT u.key COLLATE "C" AS key FROM unnest(_keys) AS u(key)
                ORDER BY 1) k
            CROSS JOIN LATERAL (SELECT 1 FROM taskyard.subqueue s
                WHERE s.tube = _t.number AND s.key = k.key FOR UPDATE OFFSET 0) s;
    END IF;
END $$;

-- Locks the sub-queues of these tasks of a tube and returns their keys.
CREATE OR REPLACE FUNCTION taskyard.lock_subqueues_of(_number integer, _ids bigint[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _keys text[];
BEGIN
    _keys := ARRAY(SELECT DISTINCT t.subqueue FROM unnest(_ids) AS i(id)
        CROSS JOIN LATERAL (SELECT k.subqueue FROM taskyard.task k
            WHERE k.tube = _number AND k.id = i.id OFFSET 0) t
        WHERE t.subqueue IS NOT NULL);
    PERFORM taskyard.lock_subqueues(_number, _keys);
    RETURN _keys;
END $$;

-- Finds the new heads of these locked sub-queues after their tasks changed, and deletes those without tasks. States are ranges and
-- rows are ordered, so that only the index of sub-queues fits: without recent statistics all indexes seem to cost the same, and
-- with another one each sub-queue would read the ready or taken tasks of the whole tube.
CREATE OR REPLACE FUNCTION taskyard.set_subqueue_heads(_number integer, _keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _key text;
    _pri bigint;
    _id bigint;
BEGIN
    FOREACH _key IN ARRAY _keys LOOP
        SELECT t.pri, t.id INTO _pri, _id FROM taskyard.task t
            WHERE t.tube = _number AND t.subqueue = _key AND t.state < 1
                AND (SELECT r.id FROM taskyard.task r
                    WHERE r.tube = _number AND r.subqueue = _key AND r.state > 0 AND r.state < 2
                    ORDER BY r.state, r.pri, r.id LIMIT 1) IS NULL
            ORDER BY t.state, t.pri, t.id LIMIT 1;
        IF _id IS NULL AND (SELECT t.id FROM taskyard.task t WHERE t.tube = _number AND t.subqueue = _key
            ORDER BY t.state, t.pri, t.id LIMIT 1) IS NULL
        THEN
            DELETE FROM taskyard.subqueue s WHERE s.tube = _number AND s.key = _key;
        ELSE
            UPDATE taskyard.subqueue s SET head_pri = _pri, head_id = _id
                WHERE s.tube = _number AND s.key = _key
                    AND (s.head_pri, s.head_id) IS DISTINCT FROM (_pri, _id);
        END IF;
    END LOOP;
END $$;
