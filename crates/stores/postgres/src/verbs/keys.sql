-- Unique keys: which task holds a key, by the rules of the core.
--
-- A key has a row in the table of keys while its task exists, and then until the key is free. Locks are taken in this order: the
-- semaphore, the row of a tube with a capacity, sub-queues, the tasks that a put replaces or finds expired, and last the keys
-- themselves, in the order of their texts. A put locks only the keys that it gives to new tasks. The end of a task locks the task
-- and then its key, which no put has locked; so the two never wait for each other in a circle. An exception is a put of many keys that
-- were not searched: it may wait for the end of a task whose key it has too, at most lock_wait, and then searches its keys.
--
-- No index has the moment from which a key is free, so that the end of a task writes no index entries. A second table has it, with all
-- keys that one call has ended in one row. A tick compares it with the rows of the keys.

-- The keys of these tasks, which were removed, are free from now on, or after the time for which they stay held. Their rows stay where
-- they are until then: no other transaction changes the row of a key whose task exists.
CREATE OR REPLACE FUNCTION taskyard.end_keys(_number integer, _held taskyard.held_key[], _now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _places tid[];
    _keys text[];
    _untils bigint[];
    _first bigint;
    _last bigint;
BEGIN
    SELECT array_agg(p.place), array_agg(h.key), array_agg(taskyard.later(h.ended, h.unique_for)),
            min(taskyard.later(h.ended, h.unique_for)), max(taskyard.later(h.ended, h.unique_for))
        INTO _places, _keys, _untils, _first, _last FROM unnest(_held) AS h
        CROSS JOIN LATERAL (SELECT i.ctid AS place FROM taskyard.key i
            WHERE i.tube = _number AND i.key = h.key AND i.id = h.id OFFSET 0) p;
    IF _last <= _now THEN
        DELETE FROM taskyard.key k WHERE k.ctid = ANY (_places);
    ELSIF _first = _last THEN
        UPDATE taskyard.key k SET until = _last WHERE k.ctid = ANY (_places);
        INSERT INTO taskyard.ended_keys (tube, until, keys) VALUES (_number, _last, _keys);
        INSERT INTO taskyard.count (tube, ended) VALUES (_number, cardinality(_keys));
    ELSIF _first < _last THEN
        DELETE FROM taskyard.key k WHERE k.ctid = ANY (ARRAY(
            SELECT n.place FROM unnest(_places, _untils) AS n(place, until) WHERE n.until <= _now));
        UPDATE taskyard.key k SET until = n.until FROM unnest(_places, _untils) AS n(place, until)
            WHERE k.ctid = n.place AND n.until > _now;
        WITH ended AS (
            INSERT INTO taskyard.ended_keys AS e (tube, until, keys)
                SELECT _number, n.until, array_agg(n.key) FROM unnest(_keys, _untils) AS n(key, until)
                WHERE n.until > _now GROUP BY n.until
                RETURNING cardinality(e.keys) AS count)
        INSERT INTO taskyard.count (tube, ended) SELECT _number, sum(e.count) FROM ended e;
    END IF;
END $$;

-- The holders of those of these keys that are held, with the places of the keys, as far as they are _wanted. State 7 is ended. over:
-- its time to live is over, and the key is held by the task that is to be removed until `until`.
CREATE OR REPLACE FUNCTION taskyard.key_holders(_number integer, _keys text[], _wanted boolean[], _now bigint)
RETURNS TABLE (place bigint, id bigint, state smallint, over boolean, until bigint) LANGUAGE sql VOLATILE AS $$
    SELECT n.place, h.id, coalesce(t.state, 7::smallint), t.state <> 1 AND t.expires <= _now,
        coalesce(h.until, taskyard.later(t.expires, t.unique_for))
    FROM unnest(_keys, _wanted) WITH ORDINALITY AS n(key, wanted, place)
    CROSS JOIN LATERAL (SELECT k.id, k.until FROM taskyard.key k
        WHERE k.tube = _number AND k.key = n.key AND n.wanted OFFSET 0) h
    LEFT JOIN LATERAL (SELECT k.state, k.expires, k.unique_for FROM taskyard.task k
        WHERE k.tube = _number AND k.id = h.id AND h.until IS NULL OFFSET 0) t ON true
    WHERE coalesce(h.until, 9223372036854775807) > _now
    ORDER BY n.place
$$;

-- Removes those of these holders of keys whose time to live is over, as a tick does. Returns their ids.
CREATE OR REPLACE FUNCTION taskyard.expire_holders(_number integer, _ids bigint[], _now bigint) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _places tid[] := taskyard.lock_tasks(_number, _ids);
    _gone bigint[];
    _held taskyard.held_key[];
BEGIN
    WITH gone AS (
        DELETE FROM taskyard.task t WHERE t.ctid = ANY (_places) AND t.state <> 1 AND t.expires <= _now
        RETURNING t.id, t.state, t.key, t.unique_for, t.expires),
    counted AS (
        INSERT INTO taskyard.count (tube, ready, passed, delayed, buried)
        SELECT _number, -count(*) FILTER (WHERE g.state = 0), -count(*) FILTER (WHERE g.state = 5),
            -count(*) FILTER (WHERE g.state IN (2, 6)), -count(*) FILTER (WHERE g.state IN (3, 4))
        FROM gone g HAVING count(*) > 0)
    SELECT array_agg(g.id), array_agg(ROW(g.id, g.key, g.unique_for, g.expires)::taskyard.held_key)
        INTO _gone, _held FROM gone g;
    PERFORM taskyard.end_keys(_number, _held, _now);
    RETURN _gone;
END $$;

-- Gives those of these keys that are free to new tasks. Returns whether that was all.
CREATE OR REPLACE FUNCTION taskyard.claim_free_keys(_number integer, _keys text[], _ids bigint[], _now bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _claimed bigint;
    _again bigint;
BEGIN
    WITH claimed AS (
        INSERT INTO taskyard.key AS k (tube, key, id)
            SELECT _number, n.key, n.id FROM unnest(_keys, _ids) AS n(key, id)
            WHERE n.key IS NOT NULL ORDER BY n.key COLLATE "C"
        ON CONFLICT (tube, key) DO UPDATE SET id = excluded.id, until = NULL WHERE k.until <= _now
        -- A row that was updated has been locked by this transaction.
        RETURNING k.xmax <> 0 AS again)
    SELECT count(*), count(*) FILTER (WHERE c.again) INTO _claimed, _again FROM claimed c;
    IF _again > 0 THEN
        INSERT INTO taskyard.count (tube, ended) VALUES (_number, -_again);
    END IF;
    RETURN _claimed = cardinality(array_remove(_keys, NULL));
END $$;

-- Gives these keys to new tasks, all or none; NULL is a task without a key. _fresh: they are expected to have no row. _lost: one of them
-- has a holder, or with _fresh a row. Not _locked: an open transaction has given one to its own task; with the setting
-- taskyard.lock_wait this waits no longer than that.
CREATE OR REPLACE FUNCTION taskyard.claim_keys(
    _number integer, _keys text[], _ids bigint[], _now bigint, _fresh boolean, OUT _locked boolean, OUT _lost boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _wait text := nullif(current_setting('taskyard.lock_wait', true), '');
    _before text := current_setting('lock_timeout');
    _set text;
BEGIN
    _locked := true;
    _lost := false;
    IF _wait IS NOT NULL THEN
        _set := set_config('lock_timeout', _wait, true);
    END IF;
    BEGIN
        IF _fresh THEN
            INSERT INTO taskyard.key (tube, key, id)
                SELECT _number, n.key, n.id FROM (SELECT unnest(_keys) AS key, unnest(_ids) AS id) n
                WHERE n.key IS NOT NULL ORDER BY n.key COLLATE "C";
        ELSE
            _lost := NOT taskyard.claim_free_keys(_number, _keys, _ids, _now);
        END IF;
        IF _lost THEN
            -- Takes back the others.
            RAISE unique_violation;
        END IF;
    EXCEPTION
        WHEN unique_violation THEN
            _lost := true;
        WHEN lock_not_available THEN
            IF _wait IS NULL THEN
                RAISE;
            END IF;
            -- Only an insertion without a search waits for the end of a task; the search then finds its key.
            _lost := _fresh AND cardinality(_keys) > 1;
            _locked := _lost;
    END;
    IF _wait IS NOT NULL THEN
        _set := set_config('lock_timeout', _before, true);
    END IF;
END $$;

-- Gives a key that has no row to one new task and returns the id of that, from the sequence _from; NULL if the key has a row. For _locked
-- and _lost see claim_keys. The search is a part of the insertion, because a statement costs much more than an expression.
CREATE OR REPLACE FUNCTION taskyard.claim_new_key(
    _number integer, _key text, _from regclass, OUT _locked boolean, OUT _lost boolean, OUT id bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _wait text := nullif(current_setting('taskyard.lock_wait', true), '');
    _before text := current_setting('lock_timeout');
    _set text;
BEGIN
    _locked := true;
    _lost := false;
    IF _wait IS NOT NULL THEN
        _set := set_config('lock_timeout', _wait, true);
    END IF;
    BEGIN
        INSERT INTO taskyard.key AS i (tube, key, id) SELECT _number, _key, nextval(_from)
            WHERE NOT EXISTS (SELECT 1 FROM taskyard.key k WHERE k.tube = _number AND k.key = _key)
            RETURNING i.id INTO id;
    EXCEPTION
        WHEN unique_violation THEN
            _lost := true;
        WHEN lock_not_available THEN
            IF _wait IS NULL THEN
                RAISE;
            END IF;
            _locked := false;
    END;
    IF _wait IS NOT NULL THEN
        _set := set_config('lock_timeout', _before, true);
    END IF;
END $$;

-- Creates the rows of these keys of a tube that have none, as free ones, so that several puts of a transaction find them locked; and
-- locks those that are free already.
CREATE OR REPLACE FUNCTION taskyard.lock_keys(_tube text, _keys text[], _now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _number integer;
    _made text[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1952543595, hashtext(_tube));
    SELECT t.number INTO _number FROM taskyard.tube t WHERE t.name = _tube;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH made AS (
        INSERT INTO taskyard.key AS k (tube, key, id, until)
            SELECT DISTINCT _number, n.key COLLATE "C", 0, -9223372036854775808 FROM unnest(_keys) AS n(key) ORDER BY 2
            ON CONFLICT (tube, key) DO NOTHING RETURNING k.key)
    SELECT array_agg(m.key) INTO _made FROM made m;
    IF _made IS NOT NULL THEN
        INSERT INTO taskyard.ended_keys (tube, until, keys) VALUES (_number, -9223372036854775808, _made);
        INSERT INTO taskyard.count (tube, ended) VALUES (_number, cardinality(_made));
    END IF;
    PERFORM 1 FROM (SELECT DISTINCT n.key COLLATE "C" AS key FROM unnest(_keys) AS n(key) ORDER BY 1) n
        CROSS JOIN LATERAL (SELECT 1 FROM taskyard.key k WHERE k.tube = _number AND k.key = n.key
            AND k.until <= coalesce(_now, taskyard.clock()) FOR UPDATE OFFSET 0) k;
END $$;

-- Finds out which of these tasks of a put are new, and gives those their ids and keys; of the others the ids and states are those of
-- the holders of their keys. Only tasks that are _wanted are looked at, and no two of them have the same key. `gone` are holders that
-- had expired, `replaced` says which holders get the content of the put; these are locked.
CREATE OR REPLACE FUNCTION taskyard.hold_keys(
    _t taskyard.tube, _now bigint, _keys text[], _replaces boolean[], _wanted boolean[],
    INOUT ids bigint[], INOUT states smallint[], OUT locked boolean, OUT added boolean[], OUT replaced boolean[],
    OUT gone bigint[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _held record;
    _over bigint[];
    _waiting bigint[];
    _mine bigint[] := '{}';
    _claim record;
BEGIN
    FOR _try IN 1 .. 100 LOOP
        added := _wanted;
        replaced := array_fill(false, ARRAY[cardinality(_keys)]);
        _over := NULL;
        _waiting := '{}';
        FOR _held IN SELECT * FROM taskyard.key_holders(_t.number, _keys, _wanted, _now) LOOP
            IF _held.over THEN
                _over := _over || _held.id;
                CONTINUE;
            END IF;
            added[_held.place] := false;
            ids[_held.place] := _held.id;
            states[_held.place] := _held.state;
            IF _replaces[_held.place] AND _held.state IN (0, 2, 6) THEN
                replaced[_held.place] := true;
                _waiting := _waiting || _held.id;
            END IF;
        END LOOP;
        IF _over IS NOT NULL THEN
            gone := gone || taskyard.expire_holders(_t.number, _over, _now);
            CONTINUE;
        ELSIF _waiting <> _mine THEN
            PERFORM taskyard.lock_tasks(_t.number, _waiting);
            _mine := _waiting;
            CONTINUE;
        END IF;
        ids := ARRAY(SELECT CASE WHEN n.added THEN nextval(_t.ids) ELSE n.id END
            FROM unnest(added, ids) AS n(added, id));
        _claim := taskyard.claim_keys(_t.number, ARRAY(SELECT CASE WHEN n.added THEN n.key END
            FROM unnest(added, _keys) AS n(added, key)), ids, _now, false);
        locked := _claim._locked;
        IF NOT _claim._lost THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'the keys of tube ''%'' change too fast', _t.name USING ERRCODE = 'serialization_failure';
END $$;

-- Forgets keys of a tube that are free, and those that would be free first if there are too many, at most _limit. Returns how many, and how
-- many of them before their time. The caller has locked the tube, and no other tick runs.
CREATE OR REPLACE FUNCTION taskyard.trim_ended_keys(_number integer, _now bigint, _limit bigint, OUT gone bigint, OUT early bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _excess bigint := (SELECT sum(c.ended) FROM taskyard.count c WHERE c.tube = _number) - {{ENDED_KEYS_MAX}};
    _last bigint := CASE WHEN _excess > 0 THEN 9223372036854775807 ELSE _now END;
BEGIN
    WITH removed AS (
        DELETE FROM taskyard.key k WHERE k.ctid = ANY (ARRAY(SELECT p.place FROM (SELECT e.until, e.keys FROM taskyard.ended_keys e
                WHERE e.tube = _number AND e.until <= _last ORDER BY e.until LIMIT _limit) e
            CROSS JOIN LATERAL unnest(e.keys) AS n(key)
            CROSS JOIN LATERAL (SELECT i.ctid AS place FROM taskyard.key i
                WHERE i.tube = _number AND i.key = n.key AND i.until = e.until FOR UPDATE SKIP LOCKED OFFSET 0) p
            LIMIT CASE WHEN _excess > 0 THEN least(_excess, _limit) ELSE _limit END))
        RETURNING k.until)
    SELECT count(*), count(*) FILTER (WHERE r.until > _now) INTO gone, early FROM removed r;
    IF gone > 0 THEN
        INSERT INTO taskyard.count (tube, ended) VALUES (_number, -gone);
    END IF;
    -- Keys that a put has locked stay, and so does what says when they are free, since the put may be taken back.
    DELETE FROM taskyard.ended_keys o WHERE o.ctid = ANY (ARRAY(SELECT e.ctid FROM taskyard.ended_keys e
            WHERE e.tube = _number AND e.until <= _last ORDER BY e.until LIMIT _limit))
        AND NOT EXISTS (SELECT 1 FROM unnest(o.keys) AS n(key)
            CROSS JOIN LATERAL (SELECT 1 FROM taskyard.key i
                WHERE i.tube = _number AND i.key = n.key AND i.until = o.until OFFSET 0) p);
END $$;

-- The same for all tubes. Ticks of earlier versions call tick_keys, which stays as it is. The search goes from one tube with such keys to the next, so that others cost nothing.
CREATE OR REPLACE FUNCTION taskyard.tick_ended_keys(_now bigint, _limit bigint, OUT gone bigint, OUT early bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _number integer := -1;
    _until bigint;
    _name text;
    _trimmed record;
BEGIN
    gone := 0;
    early := 0;
    WHILE gone < _limit LOOP
        SELECT e.tube, e.until INTO _number, _until FROM taskyard.ended_keys e
            WHERE e.tube > _number ORDER BY e.tube, e.until LIMIT 1;
        EXIT WHEN NOT FOUND;
        CONTINUE WHEN _until > _now AND coalesce((SELECT sum(c.ended) FROM taskyard.count c WHERE c.tube = _number), 0)
            <= {{ENDED_KEYS_MAX}};
        SELECT t.name INTO _name FROM taskyard.tube t WHERE t.number = _number;
        IF NOT FOUND THEN
            -- An earlier server has dropped the tube.
            DELETE FROM taskyard.ended_keys e WHERE e.tube = _number;
            CONTINUE;
        END IF;
        -- A tube that is being altered or emptied waits for the next tick.
        CONTINUE WHEN NOT pg_try_advisory_xact_lock_shared(1952543595, hashtext(_name));
        _trimmed := taskyard.trim_ended_keys(_number, _now, _limit - gone);
        gone := gone + _trimmed.gone;
        early := early + _trimmed.early;
    END LOOP;
END $$;
