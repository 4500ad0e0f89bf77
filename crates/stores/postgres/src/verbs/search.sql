-- Searches payloads for certain bytes. Tasks that do not have them need not be sent.

-- Whether an unfinished task in this state is among the states of a list (_stored, a bit for each state of the table) and not expired.
CREATE OR REPLACE FUNCTION taskyard.is_listed(_stored integer, _state smallint, _expires bigint, _now bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT (_stored >> _state) & 1 <> 0 AND (_expires > _now OR _state IN (1, 2))
$$;

-- Compares the tasks of a tube from _first to _last that are among the states: how many they are, their bytes, the last of them, and whether
-- one of them has _run. Without _run no payload is read. The plan is made with the settings of search_range.
CREATE OR REPLACE FUNCTION taskyard.compare_range(
    _number integer, _now bigint, _first bigint, _last bigint, _stored integer, _run bytea,
    OUT compared bigint, OUT bytes bigint, OUT last bigint, OUT has_run boolean)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT count(*), coalesce(sum(octet_length(k.payload) + coalesce(octet_length(k.meta), 0)), 0), max(k.id),
            bool_or(position(_run IN k.payload) > 0)
        INTO compared, bytes, last, has_run FROM taskyard.task k
        WHERE k.tube = _number AND k.id BETWEEN _first AND _last AND taskyard.is_listed(_stored, k.state, k.expires, _now);
END $$;

-- The unfinished tasks from _first to _last in some of the states _states (bits: 1 ready, 2 taken, 4 delayed, 8 buried) whose payloads have
-- _run, as show_range shows them. The item counts the tasks that were compared. Item 0 as in show_range; its columns pri and expires are how
-- many tasks were compared, and the last of them.
CREATE OR REPLACE FUNCTION taskyard.search_range(
    _tube text, _now bigint, _first bigint, _last bigint, _states integer, _run bytea, _bytes_max bigint)
RETURNS SETOF taskyard.shown LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _t taskyard.tube;
    _c record;
    _head taskyard.shown := ROW(0, 0);
    _has_large boolean := taskyard.has_large_payloads();
    _stored integer := (_states & 15) | ((_states & 4) << 4) | ((_states & 8) << 1);
BEGIN
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _now := coalesce(_now, taskyard.clock());
    -- The bytes of large payloads are counted before they are compared.
    _c := taskyard.compare_range(_t.number, _now, _first, _last, _stored, CASE WHEN NOT _has_large THEN _run END);
    IF _has_large AND _c.bytes <= _bytes_max THEN
        _c := taskyard.compare_range(_t.number, _now, _first, _last, _stored, _run);
    END IF;
    _head.outcome := CASE WHEN _t.number IS NULL THEN 1 WHEN _c.bytes > _bytes_max THEN 6 ELSE 0 END;
    _head.id := _c.bytes;
    _head.pri := _c.compared;
    _head.expires := _c.last;
    IF _t.rate_count IS NOT NULL THEN
        _head.created := (taskyard.tokens(_t, _now)).next;
    END IF;
    RETURN NEXT _head;
    IF _head.outcome <> 0 OR _c.has_run IS NOT TRUE THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT v.*, k.semaphore_priority, CASE WHEN k.state = 1 THEN coalesce(k.since, k.created) END,
            CASE WHEN k.state = 1 THEN k.worker::text END, k.failures, NULL::bytea, k.key::text, k.attempts_max
        FROM (SELECT c.*, row_number() OVER (ORDER BY c.id) AS rank FROM taskyard.task c
            WHERE c.tube = _t.number AND c.id BETWEEN _first AND _last
                AND taskyard.is_listed(_stored, c.state, c.expires, _now)) k
        CROSS JOIN LATERAL taskyard.view_columns(k.rank::integer, 0::smallint, k.tube, k.id, k.state, k.pri,
            k.created, k.expires, k.ttr, k.timer, k.attempts, k.previous_start, k.lease, k.start, k.session, k.subqueue::text,
            k.meta, k.payload, _t.paused, _now, false) v
        WHERE position(_run IN k.payload) > 0;
END $$;
