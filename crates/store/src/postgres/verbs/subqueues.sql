-- Sub-queues: at most one task of each runs.

-- Locks the rows of these sub-queues of a tube, in one order for everybody, making those that are not
-- there.
CREATE OR REPLACE FUNCTION taskyard.lock_subqueues(_number integer, _keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _locked bigint;
BEGIN
    LOOP
        SELECT count(*) INTO _locked
            FROM (SELECT u.key FROM unnest(_keys) AS u(key) ORDER BY u.key COLLATE "C") k
            CROSS JOIN LATERAL (SELECT 1 FROM taskyard.subqueue s
                WHERE s.tube = _number AND s.key = k.key FOR UPDATE OFFSET 0) s;
        EXIT WHEN _locked = cardinality(_keys);
        -- Some are new, or were forgotten while this waited for them.
        INSERT INTO taskyard.subqueue (tube, key)
            SELECT _number, k.key FROM unnest(_keys) AS k(key) ORDER BY k.key COLLATE "C"
            ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- Locks the sub-queues of these tasks of a tube and answers their keys.
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

-- After tasks of these locked sub-queues changed: who stands first now? Those without tasks are
-- forgotten.
CREATE OR REPLACE FUNCTION taskyard.settle_subqueues(_number integer, _keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _key text;
    _pri bigint;
    _id bigint;
BEGIN
    FOREACH _key IN ARRAY _keys LOOP
        SELECT t.pri, t.id INTO _pri, _id FROM taskyard.task t
            WHERE t.tube = _number AND t.subqueue = _key AND t.state = 0
                AND NOT EXISTS (SELECT 1 FROM taskyard.task r
                    WHERE r.tube = _number AND r.subqueue = _key AND r.state = 1)
            ORDER BY t.pri, t.id LIMIT 1;
        IF _id IS NULL AND NOT EXISTS (SELECT 1 FROM taskyard.task t
            WHERE t.tube = _number AND t.subqueue = _key)
        THEN
            DELETE FROM taskyard.subqueue s WHERE s.tube = _number AND s.key = _key;
        ELSE
            UPDATE taskyard.subqueue s SET head_pri = _pri, head_id = _id
                WHERE s.tube = _number AND s.key = _key
                    AND (s.head_pri, s.head_id) IS DISTINCT FROM (_pri, _id);
        END IF;
    END LOOP;
END $$;
