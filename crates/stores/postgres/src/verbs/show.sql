-- Shows tasks.

-- A task with these columns as answers show it, as it is or (_gone) as it was when it was deleted.
CREATE OR REPLACE FUNCTION taskyard.view_columns(
    _item integer, _event smallint, _tube integer, _id bigint, _state smallint, _pri bigint, _created bigint, _expires bigint,
    _ttr bigint, _timer bigint, _attempts bigint, _previous_start bigint, _lease bigint, _start bigint, _session bytea,
    _subqueue text, _meta bytea, _payload bytea, _paused boolean, _now bigint, _gone boolean)
RETURNS SETOF taskyard.outcome LANGUAGE sql STABLE AS $$
    SELECT _item, 0::smallint, _event, _id, _state, _pri, _created, _expires, _ttr, _timer, _attempts, _previous_start,
        _lease, _start, _session, _subqueue,
        (CASE
            WHEN _gone THEN 8
            WHEN _state = 1 THEN 1
            WHEN _state = 2 THEN 2
            WHEN _expires <= _now THEN 7
            WHEN _state = 6 THEN 9
            WHEN _state = 4 THEN 6
            WHEN _state = 3 THEN 5
            WHEN _paused THEN 3
            -- With the index of sub-queues; see set_subqueue_heads.
            WHEN _subqueue IS NOT NULL AND (SELECT r.id FROM taskyard.task r
                WHERE r.tube = _tube AND r.subqueue = _subqueue AND r.state > 0 AND r.state < 2
                ORDER BY r.state, r.pri, r.id LIMIT 1) IS NOT NULL
            THEN 4
            ELSE 0
        END)::smallint,
        _meta, _payload
$$;

-- The same for a row. A scan whose columns are given one by one costs less: it does not make a row value of each.
CREATE OR REPLACE FUNCTION taskyard.view_task(
    _item integer, _event smallint, _task taskyard.task, _paused boolean, _now bigint,
    _gone boolean)
RETURNS SETOF taskyard.outcome LANGUAGE sql STABLE AS $$
    SELECT * FROM taskyard.view_columns(_item, _event, (_task).tube, (_task).id, (_task).state, (_task).pri, (_task).created,
        (_task).expires, (_task).ttr, (_task).timer, (_task).attempts, (_task).previous_start, (_task).lease, (_task).start,
        (_task).session, (_task).subqueue::text, (_task).meta, (_task).payload, _paused, _now, _gone)
$$;

-- How many bytes the tasks of these ids have together; an id that occurs twice is counted twice.
CREATE OR REPLACE FUNCTION taskyard.shown_bytes(_number integer, _ids bigint[]) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(sum(octet_length(t.payload) + coalesce(octet_length(t.meta), 0)), 0)::bigint
        FROM unnest(_ids) AS i(id)
        CROSS JOIN LATERAL (SELECT k.payload, k.meta FROM taskyard.task k
            WHERE k.tube = _number AND k.id = i.id OFFSET 0) t
$$;

-- The tasks of these ids. Item 0 comes first, its outcome a status: 0 done, 1 no such tube, 6 more bytes
-- than may be shown (as its id).
CREATE OR REPLACE FUNCTION taskyard.peek_tasks(
    _tube text, _now bigint, _ids bigint[], _bytes_max bigint)
RETURNS SETOF taskyard.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _head taskyard.outcome;
BEGIN
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _now := coalesce(_now, taskyard.clock());
    _head.item := 0;
    _head.outcome := CASE WHEN _t.number IS NULL THEN 1 ELSE 0 END;
    IF _t.number IS NOT NULL THEN
        _head.id := taskyard.shown_bytes(_t.number, _ids);
        IF _head.id > _bytes_max THEN
            _head.outcome := 6;
        END IF;
    END IF;
    RETURN NEXT _head;
    IF _head.outcome = 0 THEN
        RETURN QUERY SELECT v.* FROM unnest(_ids) WITH ORDINALITY AS i(id, item)
            CROSS JOIN LATERAL (SELECT k AS task FROM taskyard.task k
                WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t
            CROSS JOIN LATERAL
                taskyard.view_task(i.item::integer, 0::smallint, t.task, _t.paused, _now, false) v;
    END IF;
END $$;

-- The same with done tasks, and with more about each; the column created of item 0 is when the rate limit of the tube allows the next
-- delivery, if it allows none now. A task that is acked meanwhile is seen once, because all statements of a
-- stable function have one snapshot.
CREATE OR REPLACE FUNCTION taskyard.show_tasks(_tube text, _now bigint, _ids bigint[], _bytes_max bigint)
RETURNS SETOF taskyard.shown LANGUAGE plpgsql STABLE AS $$
DECLARE
    _t taskyard.tube;
    _head taskyard.shown := ROW(0, 0);
BEGIN
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _now := coalesce(_now, taskyard.clock());
    _head.id := taskyard.shown_bytes(_t.number, _ids);
    IF _t.keep_done IS NOT NULL THEN
        _head.id := _head.id + taskyard.done_bytes(_t.number, _ids);
    END IF;
    _head.outcome := CASE WHEN _t.number IS NULL THEN 1 WHEN _head.id > _bytes_max THEN 6 ELSE 0 END;
    _head.created := CASE WHEN _t.rate_count IS NOT NULL THEN (taskyard.tokens(_t, _now)).next END;
    RETURN NEXT _head;
    IF _head.outcome <> 0 THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT v.*, (t.task).semaphore_priority,
            CASE WHEN (t.task).state = 1 THEN coalesce((t.task).since, (t.task).created) END,
            CASE WHEN (t.task).state = 1 THEN (t.task).worker::text END, (t.task).failures, NULL::bytea,
            (t.task).key::text, (t.task).attempts_max
        FROM unnest(_ids) WITH ORDINALITY AS i(id, item)
        CROSS JOIN LATERAL (SELECT k AS task FROM taskyard.task k
            WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t
        CROSS JOIN LATERAL
            taskyard.view_task(i.item::integer, 0::smallint, t.task, _t.paused, _now, false) v;
    IF _t.keep_done IS NOT NULL THEN
        RETURN QUERY SELECT * FROM taskyard.show_done(_t, _now, _ids);
    END IF;
END $$;

-- Whether this number of a range is wanted: a range has a bit for each of its numbers, or is wanted as a whole.
CREATE OR REPLACE FUNCTION taskyard.is_wanted(_wanted bytea, _number bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT _wanted IS NULL OR get_bit(_wanted, _number::integer) = 1
$$;

-- Whether there may be payloads over 8 KiB, which are in the TOAST table; payloads are not compressed.
CREATE OR REPLACE FUNCTION taskyard.has_large_payloads() RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT pg_relation_size((SELECT c.reltoastrelid FROM pg_class c WHERE c.oid = 'taskyard.task'::regclass)) > 0
$$;

-- The tube of show_range: how many bytes the tasks have, whether they are shown (outcome as in item 0), and what their rows need.
CREATE OR REPLACE FUNCTION taskyard.shown_range_head(
    _tube text, _now bigint, _first bigint, _last bigint, _wanted bytea, _bytes_max bigint,
    OUT number integer, OUT paused boolean, OUT keep_done bigint, OUT now bigint, OUT bytes bigint, OUT outcome smallint,
    OUT next_token bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _t taskyard.tube;
BEGIN
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    number := _t.number;
    paused := _t.paused;
    keep_done := _t.keep_done;
    now := coalesce(_now, taskyard.clock());
    bytes := 0;
    -- Other payloads have at most 8 KiB, a meta 1 KiB. Without large ones the tasks need not be read twice.
    IF (_last - _first + 1) * 9216 > _bytes_max OR taskyard.has_large_payloads() THEN
        SELECT coalesce(sum(octet_length(k.payload) + coalesce(octet_length(k.meta), 0)), 0) INTO bytes FROM taskyard.task k
            WHERE k.tube = _t.number AND k.id BETWEEN _first AND _last AND taskyard.is_wanted(_wanted, k.id - _first);
    END IF;
    IF _t.keep_done IS NOT NULL THEN
        bytes := bytes + taskyard.done_bytes(_t.number, ARRAY(SELECT d.id FROM taskyard.done d
            WHERE d.tube = _t.number AND d.id BETWEEN _first AND _last AND taskyard.is_wanted(_wanted, d.id - _first)
            ORDER BY d.id));
    END IF;
    outcome := CASE WHEN _t.number IS NULL THEN 1 WHEN bytes > _bytes_max THEN 6 ELSE 0 END;
    IF _t.rate_count IS NOT NULL THEN
        next_token := (taskyard.tokens(_t, now)).next;
    END IF;
END $$;

-- The same as show_tasks for the wanted ids from _first to _last, for ids that are close together: reading a range of the index costs a
-- fifth of looking each id up. The item is the place in the range. A plan for each range would cost more than its rows, so one plan is kept,
-- which must fit also if the table was small when it was made.
CREATE OR REPLACE FUNCTION taskyard.show_range(
    _tube text, _now bigint, _first bigint, _last bigint, _wanted bytea, _bytes_max bigint)
RETURNS SETOF taskyard.shown LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _t record;
    _head taskyard.shown := ROW(0, 0);
BEGIN
    _t := taskyard.shown_range_head(_tube, _now, _first, _last, _wanted, _bytes_max);
    _head.outcome := _t.outcome;
    _head.id := _t.bytes;
    _head.created := _t.next_token;
    RETURN NEXT _head;
    IF _t.outcome <> 0 THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT v.*, k.semaphore_priority, CASE WHEN k.state = 1 THEN coalesce(k.since, k.created) END,
            CASE WHEN k.state = 1 THEN k.worker::text END, k.failures, NULL::bytea, k.key::text, k.attempts_max
        FROM taskyard.task k
        CROSS JOIN LATERAL taskyard.view_columns((k.id - _first)::integer + 1, 0::smallint, k.tube, k.id, k.state, k.pri,
            k.created, k.expires, k.ttr, k.timer, k.attempts, k.previous_start, k.lease, k.start, k.session, k.subqueue::text,
            k.meta, k.payload, _t.paused, _t.now, false) v
        WHERE k.tube = _t.number AND k.id BETWEEN _first AND _last AND taskyard.is_wanted(_wanted, k.id - _first);
    IF _t.keep_done IS NOT NULL THEN
        RETURN QUERY SELECT v.* FROM taskyard.done k
            CROSS JOIN LATERAL taskyard.view_done((k.id - _first)::integer + 1, k) v
            WHERE k.tube = _t.number AND k.id BETWEEN _first AND _last AND taskyard.is_wanted(_wanted, k.id - _first)
                AND taskyard.keeps(_t.keep_done, k.ended, _t.now);
    END IF;
END $$;

-- The taken tasks of a tube, by id, without payloads. Item 0 as above.
CREATE OR REPLACE FUNCTION taskyard.show_deliveries(_tube text, _count bigint)
RETURNS SETOF taskyard.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _head taskyard.outcome;
BEGIN
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _head.item := 0;
    _head.outcome := CASE WHEN _t.number IS NULL THEN 1 ELSE 0 END;
    RETURN NEXT _head;
    -- First in the order of the index of taken tasks, so that only that one fits; see set_subqueue_heads.
    RETURN QUERY SELECT 1, 0::smallint, 0::smallint, t.id, t.state, t.pri, t.created, t.expires, t.ttr,
        t.timer, t.attempts, t.previous_start, t.lease, t.start, t.session, t.subqueue::text,
        1::smallint, NULL::bytea, NULL::bytea
        FROM (SELECT k.* FROM taskyard.task k WHERE k.tube = _t.number AND k.state = 1
            ORDER BY k.timer OFFSET 0) t
        ORDER BY t.id LIMIT _count;
END $$;
