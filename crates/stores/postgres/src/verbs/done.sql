-- Done tasks that a tube keeps.

-- How a delivery ended, in the form of the core: when (8 bytes), how long it lasted (8), the length of the worker's name (1), the name,
-- the result.
CREATE OR REPLACE FUNCTION taskyard.finished(_at bigint, _start bigint, _worker bytea, _result bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT int8send(_at) || int8send(least(greatest(_at - _start, 0), {{FOREVER}}))
        || coalesce(set_byte('\x00'::bytea, 0, octet_length(_worker)) || _worker, '\x00') || coalesce(_result, '')
$$;

-- Makes these tasks done, as far as they are taken with these leases, and keeps them. _lay as in ack_tasks. Returns their ids.
CREATE OR REPLACE FUNCTION taskyard.keep_leased(
    _number integer, _now bigint, _ids bigint[], _leases bigint[], _lay tid[], _results bytea[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _done bigint[];
    _held taskyard.held_key[];
BEGIN
    WITH gone AS (
        DELETE FROM taskyard.task t USING (
            SELECT coalesce(i.place, (SELECT k.ctid FROM taskyard.task k
                WHERE k.tube = _number AND k.id = i.id)) AS place, i.lease, i.result
            FROM unnest(_ids, _leases, _lay, _results) AS i(id, lease, place, result) OFFSET 0) h
        WHERE t.ctid = h.place AND t.lease = h.lease AND t.tube IS NOT DISTINCT FROM _number
            AND coalesce(t.timer, 9223372036854775807) > _now
        RETURNING t.id, t.pri, t.created, t.expires, t.ttr, t.attempts, t.previous_start, t.subqueue, t.meta,
            t.payload, t.failures, t.start, t.worker, h.result, t.key, t.unique_for, t.attempts_max),
    kept AS (
        INSERT INTO taskyard.done AS d (tube, id, ended, pri, created, expires, ttr, attempts, previous_start,
                subqueue, meta, payload, failures, finished, key, unique_for, attempts_max)
            SELECT _number, g.id, _now, g.pri, g.created, g.expires, g.ttr, g.attempts, g.previous_start,
                g.subqueue, g.meta, g.payload, g.failures,
                taskyard.finished(_now, g.start, convert_to(g.worker, 'UTF8'), g.result), g.key, g.unique_for,
                g.attempts_max
            FROM gone g RETURNING d.id, d.key, d.unique_for)
    SELECT array_agg(k.id), array_agg(ROW(k.id, k.key, k.unique_for, _now)::taskyard.held_key)
            FILTER (WHERE k.key IS NOT NULL)
        INTO _done, _held FROM kept k;
    IF _held IS NOT NULL THEN
        PERFORM taskyard.end_keys(_number, _held, _now);
    END IF;
    RETURN _done;
END $$;

-- The same for those whose holders are right. Locks all of them first, so that they stay where they are.
CREATE OR REPLACE FUNCTION taskyard.keep_held(
    _number integer, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[], _sessions bytea[],
    _results bytea[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _held record;
BEGIN
    PERFORM taskyard.lock_tasks(_number, _ids);
    SELECT array_agg(i.id) AS ids, array_agg((t.task).lease) AS leases, array_agg(t.place) AS places,
            array_agg(i.result) AS results INTO _held
        FROM unnest(_ids, _holders, _leases, _sessions, _results) AS i(id, holder, lease, session, result)
        CROSS JOIN LATERAL (SELECT k.ctid AS place, k AS task FROM taskyard.task k
            WHERE k.tube = _number AND k.id = i.id OFFSET 0) t
        WHERE taskyard.is_held(
            t.task, _now, coalesce(i.holder, 0::smallint), i.lease, i.session);
    RETURN taskyard.keep_leased(_number, _now, _held.ids, _held.leases, _held.places, _held.results);
END $$;

-- Acks in a tube that keeps done tasks; the arguments are those of ack_tasks. Returns the ids of the tasks that are done.
CREATE OR REPLACE FUNCTION taskyard.keep_acked(
    _number integer, _now bigint, _ids bigint[], _holders smallint[], _leases bigint[], _sessions bytea[],
    _lay tid[], _results bytea[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _done bigint[];
BEGIN
    IF _holders IS NULL THEN
        _done := taskyard.keep_leased(_number, _now, _ids, _leases, _lay, _results);
    END IF;
    IF _holders IS NOT NULL OR coalesce(cardinality(_done), 0) < cardinality(_ids) THEN
        _done := _done || taskyard.keep_held(_number, _now, _ids, _holders, _leases, _sessions, _results);
    END IF;
    RETURN _done;
END $$;

-- Whether a task that ended then can still be seen in a tube with this option.
CREATE OR REPLACE FUNCTION taskyard.keeps(_keep_done bigint, _ended bigint, _now bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT taskyard.later(_ended, _keep_done) > _now
$$;

-- How many bytes the done tasks of these ids have together, with their results.
CREATE OR REPLACE FUNCTION taskyard.done_bytes(_number integer, _ids bigint[]) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(octet_length(t.payload) + coalesce(octet_length(t.meta), 0)
            + octet_length(t.finished) - 17 - get_byte(substring(t.finished FROM 17 FOR 1), 0)), 0)::bigint
        FROM unnest(_ids) AS i(id)
        CROSS JOIN LATERAL (SELECT d.payload, d.meta, d.finished FROM taskyard.done d
            WHERE d.tube = _number AND d.id = i.id OFFSET 0) t
$$;

-- A done task as answers show it.
CREATE OR REPLACE FUNCTION taskyard.view_done(_item integer, _done taskyard.done) RETURNS SETOF taskyard.shown
LANGUAGE sql STABLE AS $$
    SELECT _item, 0::smallint, 0::smallint, (_done).id, 7::smallint, (_done).pri, (_done).created, (_done).expires,
        (_done).ttr, NULL::bigint, (_done).attempts, (_done).previous_start, NULL::bigint, NULL::bigint, NULL::bytea,
        (_done).subqueue::text, 8::smallint, (_done).meta, (_done).payload, NULL::float8, NULL::bigint, NULL::text,
        (_done).failures, (_done).finished, (_done).key::text, (_done).attempts_max
$$;

-- The done tasks of these ids.
CREATE OR REPLACE FUNCTION taskyard.show_done(_t taskyard.tube, _now bigint, _ids bigint[])
RETURNS SETOF taskyard.shown LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT v.* FROM unnest(_ids) WITH ORDINALITY AS i(id, item)
        CROSS JOIN LATERAL (SELECT d AS done FROM taskyard.done d
            WHERE d.tube = _t.number AND d.id = i.id AND taskyard.keeps(_t.keep_done, d.ended, _now) OFFSET 0) t
        CROSS JOIN LATERAL taskyard.view_done(i.item::integer, t.done) v;
END $$;

-- A page of done tasks, by id; with _key only those that had this key.
CREATE OR REPLACE FUNCTION taskyard.list_done(_t taskyard.tube, _now bigint, _id bigint, _limit bigint, _key text)
RETURNS TABLE (id bigint, pri bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    IF _key IS NOT NULL THEN
        RETURN QUERY SELECT d.id, d.pri FROM taskyard.done d
            WHERE d.tube = _t.number AND d.key = _key AND d.id > _id AND taskyard.keeps(_t.keep_done, d.ended, _now)
            ORDER BY d.key, d.id LIMIT _limit;
        RETURN;
    END IF;
    RETURN QUERY SELECT d.id, d.pri FROM taskyard.done d
        WHERE d.tube = _t.number AND d.id > _id AND taskyard.keeps(_t.keep_done, d.ended, _now)
        ORDER BY d.id LIMIT _limit;
END $$;

-- Deletes the done tasks of these ids and returns them, without their failures and, unless _show is set, without their payloads. The
-- item of each is the first place of its id. One that another transaction removes is missing already: to wait for a tick, which may wait
-- for locks of this transaction, would be a deadlock.
CREATE OR REPLACE FUNCTION taskyard.delete_done(_t taskyard.tube, _now bigint, _ids bigint[], _show boolean)
RETURNS SETOF taskyard.shown LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _items integer[];
    _places tid[];
BEGIN
    SELECT array_agg(i.item), array_agg(t.place) INTO _items, _places
        FROM (SELECT n.id, min(n.item)::integer AS item
            FROM unnest(_ids) WITH ORDINALITY AS n(id, item) GROUP BY n.id ORDER BY n.id) i
        CROSS JOIN LATERAL (SELECT d.ctid AS place FROM taskyard.done d
            WHERE d.tube = _t.number AND d.id = i.id AND taskyard.keeps(_t.keep_done, d.ended, _now)
            FOR UPDATE SKIP LOCKED OFFSET 0) t;
    IF _places IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO taskyard.count (tube, kept) VALUES (_t.number, -cardinality(_places));
    RETURN QUERY WITH gone AS (
        DELETE FROM taskyard.done d USING unnest(_items, _places) AS p(item, place) WHERE d.ctid = p.place
        RETURNING p.item, d.id, d.pri, d.created, d.expires, d.ttr, d.attempts, d.previous_start, d.subqueue,
            CASE WHEN _show THEN d.meta END AS meta, CASE WHEN _show THEN d.payload END AS payload,
            CASE WHEN _show THEN d.finished END AS finished, d.attempts_max)
        SELECT g.item, 0::smallint, 0::smallint, g.id, 7::smallint, g.pri, g.created, g.expires, g.ttr, NULL::bigint,
            g.attempts, g.previous_start, NULL::bigint, NULL::bigint, NULL::bytea, g.subqueue::text, 8::smallint,
            g.meta, g.payload, NULL::float8, NULL::bigint, NULL::text, NULL::bytea, g.finished, NULL::text,
            g.attempts_max
        FROM gone g;
END $$;

-- Sets for how long and how many done tasks a tube keeps, and lets the next tick look at those that it has.
CREATE OR REPLACE FUNCTION taskyard.set_retention(_number integer, _keep_done bigint, _keep_done_max bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE taskyard.tube t SET keep_done = _keep_done, keep_done_max = _keep_done_max
        WHERE t.number = _number AND (t.keep_done, t.keep_done_max) IS DISTINCT FROM (_keep_done, _keep_done_max);
    UPDATE taskyard.retention r SET due = 0, searched = 0 WHERE r.tube = _number;
    IF NOT FOUND AND _keep_done IS NOT NULL THEN
        INSERT INTO taskyard.retention (tube) VALUES (_number);
    END IF;
END $$;

-- Removes done tasks of a tube that are over age or too many, oldest first, at most _limit. Returns how many. The caller has locked the
-- tube.
CREATE OR REPLACE FUNCTION taskyard.trim_done(_t taskyard.tube, _now bigint, _limit bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _r taskyard.retention;
    _begun bigint := taskyard.clock();
    _kept bigint := (SELECT coalesce(sum(c.kept), 0) FROM taskyard.count c WHERE c.tube = _t.number);
    _excess bigint := CASE WHEN _t.keep_done IS NULL THEN _limit
        WHEN _kept > _t.keep_done_max + _t.keep_done_max / 8 THEN _kept - _t.keep_done_max ELSE 0 END;
    -- Tasks that ended until then are removed.
    _until bigint := CASE WHEN _excess > 0 THEN 9223372036854775807 WHEN _t.keep_done >= {{FOREVER}} THEN -1
        ELSE _now - _t.keep_done END;
    _gone bigint;
    _last bigint;
    _first bigint;
BEGIN
    SELECT * INTO _r FROM taskyard.retention r WHERE r.tube = _t.number;
    -- The search passes the index entries of removed tasks until they are vacuumed, so it begins at the oldest task that is known. One that
    -- ended earlier may have been committed later: once a second, or less often where that is costly, it begins at the beginning.
    IF NOT _begun BETWEEN _r.searched AND _r.searched + greatest(20 * _r.cost, 1000000) THEN
        _r.oldest := -9223372036854775808;
        _r.searched := _begun;
    END IF;
    WITH gone AS (
        DELETE FROM taskyard.done d WHERE d.ctid = ANY (ARRAY(SELECT k.ctid FROM taskyard.done k
            WHERE k.tube = _t.number AND k.ended BETWEEN _r.oldest AND _until
            ORDER BY k.ended, k.id LIMIT CASE WHEN _excess > 0 THEN least(_excess, _limit) ELSE _limit END
            FOR UPDATE SKIP LOCKED))
        RETURNING d.ended)
    SELECT count(*), max(g.ended) INTO _gone, _last FROM gone g;
    IF _gone > 0 THEN
        INSERT INTO taskyard.count (tube, kept) VALUES (_t.number, -_gone);
    END IF;
    SELECT k.ended INTO _first FROM taskyard.done k
        WHERE k.tube = _t.number AND k.ended >= coalesce(_last, _r.oldest) ORDER BY k.ended, k.id LIMIT 1;
    IF _first IS NULL AND _t.keep_done IS NULL THEN
        DELETE FROM taskyard.retention r WHERE r.tube = _t.number;
        RETURN _gone;
    END IF;
    UPDATE taskyard.retention r SET oldest = coalesce(_first, _last, _r.oldest), searched = _r.searched,
        cost = CASE WHEN _r.searched = _begun THEN taskyard.clock() - _begun ELSE r.cost END,
        due = CASE WHEN _t.keep_done IS NULL OR _excess > _gone THEN _now ELSE taskyard.later(coalesce(_first, _now), _t.keep_done) END
        WHERE r.tube = _t.number;
    RETURN _gone;
END $$;

-- The same for all tubes.
CREATE OR REPLACE FUNCTION taskyard.tick_done(_now bigint, _limit bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _name text;
    _t taskyard.tube;
    _gone bigint := 0;
BEGIN
    FOR _name IN SELECT t.name FROM taskyard.retention r JOIN taskyard.tube t ON t.number = r.tube
        WHERE r.due <= _now OR t.keep_done IS NULL OR (SELECT sum(c.kept) FROM taskyard.count c WHERE c.tube = t.number)
            > t.keep_done_max + t.keep_done_max / 8
    LOOP
        EXIT WHEN _gone >= _limit;
        -- A tube that is being altered or emptied waits for the next tick.
        CONTINUE WHEN NOT pg_try_advisory_xact_lock_shared(1952543595, hashtext(_name));
        SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _name;
        CONTINUE WHEN NOT FOUND;
        _gone := _gone + taskyard.trim_done(_t, _now, _limit - _gone);
    END LOOP;
    RETURN _gone;
END $$;
