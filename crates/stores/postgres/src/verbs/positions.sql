-- Shows where waiting tasks are in the queue. Counts few tasks exactly and estimates the number of many from samples, as long as the bound of
-- the error of these is below 5 %; otherwise they are counted. All statements of a stable function have one snapshot.
--
-- A sample is the number of rows in windows of ids. The windows have a fixed length, because the density behind a random id is biased where
-- tasks of other priorities leave holes. They are at irregular places, so that holes in a regular pattern are not always missed.
--
-- Rows are read from a place on in an order for which only one index fits (see set_subqueue_heads), and the end is compared afterwards:
-- an index scan does not stop where a range of (pri, id) ends within a priority. So few rows are read first, then many.

-- Earlier versions.
DROP FUNCTION IF EXISTS taskyard.ready_sampled(integer, bigint[], bigint[], bigint[], float8[], float8[]);
DROP FUNCTION IF EXISTS taskyard.ready_sampled(integer, bigint[], bigint[], bigint[], float8[], float8[], integer);
DROP FUNCTION IF EXISTS taskyard.ready_sampled(integer, bigint[], bigint[], bigint[], float8[], float8[], integer, integer, integer);
DROP FUNCTION IF EXISTS taskyard.ready_sampled_by_id(integer, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.ready_sampled_by_id(integer, bigint, bigint, bigint, integer);
DROP FUNCTION IF EXISTS taskyard.ready_sampled_by_id(integer, bigint, bigint, bigint, integer, integer);
DROP FUNCTION IF EXISTS taskyard.ready_priorities(integer, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.ready_in_window(bigint[], bigint[], float8[], integer, bigint);
DROP FUNCTION IF EXISTS taskyard.subqueue_position(integer, text, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.ready_estimated(integer, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.ready_estimated(integer, bigint, bigint, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.ready_estimated(integer, bigint, bigint, bigint, bigint, bigint, boolean);

-- Where in its part a sample is, from 0 to 1: irregular, but always the same.
CREATE OR REPLACE FUNCTION taskyard.shift(_n bigint) RETURNS float8
LANGUAGE sql IMMUTABLE AS $$
    SELECT (hashint8(_n) & 65535) / 65536.0::float8
$$;

-- How many ready tasks are from a place on, before another one; counts up to _limit.
CREATE OR REPLACE FUNCTION taskyard.ready_between(
    _number integer, _from_pri bigint, _from_id bigint, _pri bigint, _id bigint, _limit bigint)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    _count bigint;
BEGIN
    SELECT count(*) INTO _count FROM (SELECT t.pri, t.id FROM taskyard.task t
        WHERE t.tube = _number AND t.state = 0 AND (t.pri, t.id) >= (_from_pri, _from_id)
        ORDER BY t.pri, t.id LIMIT _limit) r
        WHERE (r.pri, r.id) < (_pri, _id);
    RETURN _count;
END $$;

-- About how many ready tasks are before a place, if they all have one priority and at most one in 25 of the ids between the first and the last
-- has none: the exact number of all ready tasks then limits how many can be before the place, and the answer is wrong by at most 2 %. NULL
-- otherwise, and for less than _least.
CREATE OR REPLACE FUNCTION taskyard.ready_bounded(_number integer, _pri bigint, _id bigint, _least bigint,
    OUT ahead bigint, OUT is_exact boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _first record;
    _last record;
    _all bigint;
    _most bigint;
BEGIN
    SELECT t.pri, t.id INTO _first FROM taskyard.task t
        WHERE t.tube = _number AND t.state = 0 ORDER BY t.pri, t.id LIMIT 1;
    SELECT t.pri, t.id INTO _last FROM taskyard.task t
        WHERE t.tube = _number AND t.state = 0 ORDER BY t.pri DESC, t.id DESC LIMIT 1;
    IF _first.pri = _last.pri AND _first.pri <= _pri THEN
        IF _first.pri < _pri OR _last.id < _id THEN
            _id := _last.id + 1;
        END IF;
        SELECT sum(c.ready) INTO _all FROM taskyard.count c WHERE c.tube = _number;
        -- The fewest that can be before the place, and the most.
        ahead := _all - (_last.id + 1 - _id);
        _most := least(_id - _first.id, _all);
        IF ahead >= _least AND _most - ahead <= ahead / 25 THEN
            is_exact := ahead = _most;
            ahead := (ahead + _most) / 2;
            RETURN;
        END IF;
    END IF;
    ahead := NULL;
END $$;

-- Ranges of ids that contain all ready tasks before a place, and how many ids these are: for each priority from its first task to its last one. If the
-- place is in the last priority, those behind it may have fewer ids; is_behind tells that the range contains these. With more than 64
-- priorities, the ids of all tasks.
CREATE OR REPLACE FUNCTION taskyard.ready_ranges(_number integer, _pri bigint, _id bigint,
    OUT firsts bigint[], OUT ends bigint[], OUT length float8, OUT is_behind boolean)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET cpu_operator_cost = 1 AS $$
DECLARE
    _last record;
BEGIN
    WITH RECURSIVE found AS (
        (SELECT t.pri, t.id, 1 AS n FROM taskyard.task t WHERE t.tube = _number AND t.state = 0 ORDER BY t.pri, t.id LIMIT 1)
        UNION ALL
        SELECT n.pri, n.id, f.n + 1 FROM found f CROSS JOIN LATERAL (SELECT t.pri, t.id FROM taskyard.task t
            WHERE t.tube = _number AND t.state = 0 AND t.pri > f.pri ORDER BY t.pri, t.id LIMIT 1) n
        WHERE (n.pri, n.id) < (_pri, _id) AND f.n <= 64),
    range AS (
        SELECT int8range(f.id, e.id, '[]') AS ids FROM found f CROSS JOIN LATERAL (SELECT t.id FROM taskyard.task t
            WHERE t.tube = _number AND t.state = 0
                AND (t.pri, t.id) < (f.pri, CASE WHEN f.pri = _pri THEN _id ELSE 9223372036854775807 END)
            ORDER BY t.pri DESC, t.id DESC LIMIT 1) e
        WHERE (SELECT max(n) FROM found) <= 64
        UNION ALL
        SELECT int8range(a.id, z.id, '[]') FROM (SELECT t.id FROM taskyard.task t WHERE t.tube = _number ORDER BY t.id LIMIT 1) a
            CROSS JOIN (SELECT t.id FROM taskyard.task t WHERE t.tube = _number ORDER BY t.id DESC LIMIT 1) z
        WHERE (SELECT max(n) FROM found) > 64)
    SELECT array_agg(lower(u.ids)), array_agg(upper(u.ids)), sum(upper(u.ids) - lower(u.ids)), false
        INTO firsts, ends, length, is_behind FROM unnest((SELECT range_agg(r.ids) FROM range r)) AS u(ids);
    SELECT t.pri, t.id + 1 AS ending INTO _last FROM taskyard.task t
        WHERE t.tube = _number AND t.state = 0 ORDER BY t.pri DESC, t.id DESC LIMIT 1;
    IF _last.pri = _pri AND _last.ending > _id AND _last.ending - _id < length THEN
        firsts := ARRAY[_id];
        ends := ARRAY[_last.ending];
        length := _last.ending - _id;
        is_behind := true;
    END IF;
END $$;

-- About how many ready tasks of these ranges of ids are before a place (or not, with _is_behind), from so many windows of _size ids in
-- proportion to the _length of each range, and the standard error of that. The windows of a range begin before it, so that each of its ids is in
-- as many windows on average. The difference of neighbours has the errors of both. One plan is kept, because it costs as much as the windows.
CREATE OR REPLACE FUNCTION taskyard.ready_sampled(
    _number integer, _pri bigint, _id bigint, _firsts bigint[], _ends bigint[], _length float8, _is_behind boolean, _size bigint,
    _windows integer, OUT tasks float8, OUT error float8)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH part AS (
        SELECT r.first_id, r.ending, w.windows, (r.ending - r.first_id + _size - 1) / w.windows::float8 AS share
        FROM unnest(_firsts, _ends) AS r(first_id, ending)
        CROSS JOIN LATERAL (SELECT ceil((r.ending - r.first_id) / _length * _windows)::integer AS windows) w),
    place AS MATERIALIZED (
        SELECT p.first_id, p.ending, p.share, p.first_id - _size + 1
            + floor(p.share * (n + taskyard.shift((_windows::bigint << 24) + p.first_id + n)))::bigint AS from_id
        FROM part p CROSS JOIN LATERAL generate_series(0, p.windows - 1) AS n),
    found AS (
        SELECT p.from_id, p.share / _size * w.rows AS tasks
        FROM place p CROSS JOIN LATERAL (
            SELECT count(*) FILTER (WHERE r.state = 0 AND ((r.pri, r.id) < (_pri, _id)) <> _is_behind) AS rows
            FROM (SELECT t.id, t.pri, t.state FROM taskyard.task t WHERE t.tube = _number
                AND t.id >= greatest(p.from_id, p.first_id) AND t.id < least(p.from_id + _size, p.ending)
                ORDER BY t.id OFFSET 0) r) w)
    SELECT sum(d.tasks), sqrt(sum(d.step ^ 2) / 2) INTO tasks, error
        FROM (SELECT f.tasks, f.tasks - lag(f.tasks) OVER (ORDER BY f.from_id) AS step FROM found f) d;
END $$;

-- How many ready tasks are from a place on, before another one; counts all of them, which reads at most two priorities in part.
CREATE OR REPLACE FUNCTION taskyard.ready_counted(_number integer, _from_pri bigint, _from_id bigint, _pri bigint, _id bigint)
RETURNS bigint LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    _count bigint;
    _more bigint;
BEGIN
    SELECT count(*) INTO _count FROM (SELECT t.id FROM taskyard.task t WHERE t.tube = _number AND t.state = 0 AND t.pri = _from_pri
        AND t.id >= _from_id AND t.id < CASE WHEN _from_pri = _pri THEN _id ELSE 9223372036854775807 END
        ORDER BY t.pri, t.id OFFSET 0) r;
    IF _from_pri < _pri THEN
        SELECT count(*) INTO _more FROM (SELECT t.id FROM taskyard.task t WHERE t.tube = _number AND t.state = 0
            AND t.pri > _from_pri AND t.pri < _pri ORDER BY t.pri, t.id OFFSET 0) r;
        _count := _count + _more;
        SELECT count(*) INTO _more FROM (SELECT t.id FROM taskyard.task t WHERE t.tube = _number AND t.state = 0
            AND t.pri = _pri AND t.id < _id ORDER BY t.pri, t.id OFFSET 0) r;
        _count := _count + _more;
    END IF;
    RETURN _count;
END $$;

-- How many ready tasks are before a place, of which _before are before an earlier one, and whether that is exact, if _before is; there are at
-- least _least. At both ends of a tube they are counted, between them estimated. The bound of the error has two parts, of which
-- one rarely is large when the other is. One is three and a half standard errors. The other is for what no window has hit: the tasks of up to four parts
-- between windows, however they are distributed (with more, all windows miss them in less than e^-4 of all cases). The estimate is wrong by at
-- most 5 % if the bound is at most a 21st of it. A first look with few windows says how many are necessary; if counting the tasks, from the
-- earlier place or from the end, costs less than these (about as much as a window for 100 tasks), they are counted.
CREATE OR REPLACE FUNCTION taskyard.ready_estimated(
    _number integer, _pri bigint, _id bigint, _from_pri bigint, _from_id bigint, _before bigint, _least bigint, _is_exact boolean,
    OUT ahead bigint, OUT is_exact boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _ranges record;
    _all bigint;
    _others bigint;
    _size bigint;
    _windows integer := 40;
    _is_look boolean := true;
    _sample record;
    _noise float8;
    _unseen float8;
BEGIN
    SELECT sum(c.ready), sum(c.passed + c.taken + c.delayed + c.buried) INTO _all, _others FROM taskyard.count c WHERE c.tube = _number;
    IF _all <= {{AHEAD_COUNTED_MAX}} THEN
        ahead := _before + taskyard.ready_between(_number, _from_pri, _from_id, _pri, _id, _all);
        is_exact := _is_exact;
        RETURN;
    END IF;
    _ranges := taskyard.ready_ranges(_number, _pri, _id);
    -- A window has 12 rows if all tasks are in the ranges.
    _size := ceil(12 * greatest(_ranges.length / greatest(_all + _others, 1)::float8, 1));
    -- Few ids are behind the place, as behind that of a task that was just put.
    IF _ranges.is_behind AND _ranges.length <= {{AHEAD_COUNTED_MAX}} THEN
        ahead := _all - taskyard.ready_counted(_number, _pri, _id, 9223372036854775807, 9223372036854775807);
        is_exact := true;
        RETURN;
    END IF;
    is_exact := false;
    LOOP
        _sample := taskyard.ready_sampled(_number, _pri, _id, _ranges.firsts, _ranges.ends, _ranges.length, _ranges.is_behind, _size, _windows);
        ahead := CASE WHEN _ranges.is_behind THEN _all - _sample.tasks ELSE _sample.tasks END;
        ahead := least(greatest(ahead, _least, 1), _all);
        -- Both parts of the bound as shares of the estimate, squared, with one window each: the noise falls with the number of windows, the
        -- other part with its square.
        _noise := (3.5 * _sample.error / greatest(ahead, 1)) ^ 2 * _windows;
        _unseen := (4 * _ranges.length / greatest(ahead, 1)) ^ 2;
        IF _is_look AND _least < _before + {{AHEAD_COUNTED_MAX}} AND ahead - _before < 8 * {{AHEAD_COUNTED_MAX}} THEN
            _least := _before + taskyard.ready_between(_number, _from_pri, _from_id, _pri, _id, {{AHEAD_COUNTED_MAX}});
            IF _least < _before + {{AHEAD_COUNTED_MAX}} THEN
                ahead := _least;
                is_exact := _is_exact;
                RETURN;
            END IF;
            ahead := greatest(ahead, _least);
        ELSIF _noise / _windows + _unseen / _windows::float8 ^ 2 <= 1 / 21.0 ^ 2 THEN
            RETURN;
        END IF;
        -- A little more than seems necessary, because the noise was estimated, too.
        _windows := greatest(1.5 * _windows, least(1e8, 256 * _noise + sqrt((256 * _noise) ^ 2 + 512 * _unseen)));
        _is_look := false;
        EXIT WHEN least(ahead - _before, _all - ahead) <= 100.0 * _windows;
    END LOOP;
    IF ahead - _before <= _all - ahead THEN
        ahead := _before + taskyard.ready_counted(_number, _from_pri, _from_id, _pri, _id);
        is_exact := _is_exact;
    ELSE
        ahead := _all - taskyard.ready_counted(_number, _pri, _id, 9223372036854775807, 9223372036854775807);
        is_exact := true;
    END IF;
END $$;

-- How many ready tasks are before a place, of which _before are before an earlier one, and whether that is exact, if _before is. A few
-- are counted at once; if there are more, a first estimate decides whether they are counted or estimated.
CREATE OR REPLACE FUNCTION taskyard.ready_ahead(
    _number integer, _pri bigint, _id bigint, _from_pri bigint, _from_id bigint, _before bigint, _is_exact boolean,
    OUT ahead bigint, OUT is_exact boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _count bigint;
    _limit bigint;
BEGIN
    FOREACH _limit IN ARRAY ARRAY[64, 640] LOOP
        _count := taskyard.ready_between(_number, _from_pri, _from_id, _pri, _id, _limit);
        EXIT WHEN _count < _limit;
    END LOOP;
    IF _count < _limit THEN
        ahead := _before + _count;
        is_exact := _is_exact;
    ELSE
        SELECT e.ahead, e.is_exact INTO ahead, is_exact FROM taskyard.ready_estimated(
            _number, _pri, _id, _from_pri, _from_id, _before, _before + _count, _is_exact) e;
    END IF;
END $$;

-- The place of a task in its sub-queue. Beyond the tasks that are counted, the sub-queue is taken to have the same share of all
-- ready tasks as before; _ready is the number of these before the task. last is the last task that is counted in a long sub-queue, with the number of all
-- ready tasks before it: that costs much, so it is found once for all tasks of the sub-queue.
CREATE OR REPLACE FUNCTION taskyard.subqueue_position(_number integer, _key text, _pri bigint, _id bigint, _ready bigint,
    INOUT last bigint[], OUT ahead bigint, OUT is_exact boolean, OUT is_busy boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _limit bigint;
BEGIN
    ahead := {{SUBQUEUE_COUNTED_MAX}};
    IF last IS NULL OR (_pri, _id) <= (last[1], last[2]) THEN
        ahead := NULL;
    END IF;
    FOREACH _limit IN ARRAY ARRAY[64, {{SUBQUEUE_COUNTED_MAX}}] LOOP
        EXIT WHEN ahead = {{SUBQUEUE_COUNTED_MAX}};
        SELECT count(*) INTO ahead FROM (SELECT t.pri, t.id FROM taskyard.task t
            WHERE t.tube = _number AND t.subqueue = _key AND t.state < 1 ORDER BY t.state, t.pri, t.id LIMIT _limit) r
            WHERE (r.pri, r.id) < (_pri, _id);
        EXIT WHEN ahead < _limit;
    END LOOP;
    is_exact := ahead < {{SUBQUEUE_COUNTED_MAX}};
    IF NOT is_exact THEN
        IF last IS NULL THEN
            SELECT ARRAY[t.pri, t.id] INTO last FROM taskyard.task t
                WHERE t.tube = _number AND t.subqueue = _key AND t.state < 1
                ORDER BY t.state, t.pri, t.id OFFSET {{SUBQUEUE_COUNTED_MAX}} - 1 LIMIT 1;
            last := last || (taskyard.ready_estimated(_number, last[1], last[2], -9223372036854775808, -1, 0, {{AHEAD_COUNTED_MAX}}, true)).ahead;
        END IF;
        ahead := round(ahead * greatest(_ready::float8 / greatest(last[3], ahead), 1));
    END IF;
    SELECT count(*) > 0 INTO is_busy FROM (SELECT t.id FROM taskyard.task t
        WHERE t.tube = _number AND t.subqueue = _key AND t.state > 0 AND t.state < 2
        ORDER BY t.state, t.pri, t.id LIMIT 1) r;
END $$;

-- How many waiting members of the semaphore before a tube get a grant before this task of it; NULL without a semaphore.
CREATE OR REPLACE FUNCTION taskyard.gate_ahead(_t taskyard.tube, _id bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _n taskyard.semaphore_state;
    _rank float8;
    _seq bigint;
    _limit bigint;
    _count bigint;
BEGIN
    SELECT s.* INTO _n FROM taskyard.semaphore_state s WHERE s.semaphore_id = _t.semaphore;
    IF _n.semaphore_id IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT p.rank, p.seq INTO _rank, _seq FROM taskyard.semaphore_task p
        WHERE p.semaphore_id = _t.semaphore AND p.task_id = taskyard.gated(_t.number, _id);
    FOREACH _limit IN ARRAY ARRAY[64, {{GATE_LOOKED_MAX}}] LOOP
        SELECT count(*) INTO _count FROM (SELECT p.rank, p.seq FROM taskyard.semaphore_task p
            WHERE p.semaphore_id = _t.semaphore AND p.status = 'WAIT'
                AND (p.rank, p.seq) >= (taskyard.semaphore_from_rank(_n), taskyard.semaphore_from_seq(_n))
            ORDER BY p.rank, p.seq LIMIT _limit) r
            WHERE (r.rank, r.seq) < (_rank, _seq);
        EXIT WHEN _count < _limit;
    END LOOP;
    RETURN _count;
END $$;

-- The delayed tasks of a tube that are due first. Other tasks with a timer are between them, so at most as many are read.
CREATE OR REPLACE FUNCTION taskyard.first_delayed(_number integer, OUT pris bigint[], OUT ids bigint[], OUT dues bigint[])
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _delayed bigint;
BEGIN
    SELECT sum(c.delayed) INTO _delayed FROM taskyard.count c WHERE c.tube = _number;
    IF _delayed > 0 THEN
        SELECT array_agg(d.pri), array_agg(d.id), array_agg(d.timer) INTO pris, ids, dues
            FROM (SELECT k.pri, k.id, k.timer FROM (SELECT t.pri, t.id, t.timer, t.state FROM taskyard.task t
                    WHERE t.tube = _number AND t.timer IS NOT NULL AND t.state <> 1
                    ORDER BY t.timer LIMIT {{DELAYED_LOOKED_MAX}}) k
                WHERE k.state = 2 LIMIT _delayed) d;
    END IF;
END $$;

-- The ready tasks of a tube that are expired and not removed yet.
CREATE OR REPLACE FUNCTION taskyard.expired_ready(_number integer, _now bigint,
    OUT pris bigint[], OUT ids bigint[], OUT keys text[])
LANGUAGE sql STABLE AS $$
    SELECT array_agg(k.pri), array_agg(k.id), array_agg(k.subqueue::text)
        FROM (SELECT t.pri, t.id, t.subqueue, t.state FROM taskyard.task t
            WHERE t.tube = _number AND t.timer IS NOT NULL AND t.timer <= _now AND t.state <> 1
            ORDER BY t.timer LIMIT {{DELAYED_LOOKED_MAX}}) k
        WHERE k.state = 0
$$;

-- The positions of those of these tasks that wait, in any order; the item is the place of the id. Item 0 is about the tube: its
-- status (0 done, 1 no such tube), this clock as its id, and the delayed tasks that are due first. Tasks are looked at in the
-- order of the queue, and of each those are counted that are between it and the one before.
CREATE OR REPLACE FUNCTION taskyard.show_positions(_tube text, _now bigint, _ids bigint[])
RETURNS TABLE (item integer, status smallint, id bigint, pri bigint, due bigint, ahead bigint, is_exact boolean,
    subqueue_ahead bigint, is_busy boolean, gate_ahead bigint, delayed_pris bigint[], delayed_ids bigint[], delayed_dues bigint[],
    is_delayed boolean)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    _t taskyard.tube;
    _k record;
    _bounded record;
    _expired record;
    _gone record;
    _own record;
    -- Of long sub-queues: see subqueue_position.
    _lasts jsonb := '{}';
    _ready bigint := 0;
    _count bigint;
    _exact boolean := true;
    _last_pri bigint := -9223372036854775808;
    _last_id bigint := -1;
BEGIN
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _now := coalesce(_now, taskyard.clock());
    RETURN QUERY SELECT 0, CASE WHEN _t.number IS NULL THEN 1 ELSE 0 END::smallint, _now, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::boolean, NULL::bigint, NULL::boolean, NULL::bigint, d.pris, d.ids, d.dues, NULL::boolean
        FROM taskyard.first_delayed(_t.number) d;
    _expired := taskyard.expired_ready(_t.number, _now);
    FOR _k IN SELECT i.item::integer, t.* FROM unnest(_ids) WITH ORDINALITY AS i(id, item)
        CROSS JOIN LATERAL (SELECT k.id, k.pri, k.state, k.expires, k.timer, k.subqueue::text AS key FROM taskyard.task k
            WHERE k.tube = _t.number AND k.id = i.id OFFSET 0) t
        WHERE t.state = 2 OR t.state IN (0, 6) AND t.expires > _now
        ORDER BY t.pri, t.id
    LOOP
        _bounded := taskyard.ready_bounded(_t.number, _k.pri, _k.id, {{AHEAD_COUNTED_MAX}});
        IF _bounded.ahead IS NOT NULL THEN
            _ready := CASE WHEN _bounded.is_exact THEN _bounded.ahead ELSE greatest(_ready, _bounded.ahead) END;
            _exact := _bounded.is_exact;
        ELSE
            SELECT a.ahead, a.is_exact INTO _ready, _exact
                FROM taskyard.ready_ahead(_t.number, _k.pri, _k.id, _last_pri, _last_id, _ready, _exact) a;
        END IF;
        _last_pri := _k.pri;
        _last_id := _k.id;
        SELECT count(*) AS count, count(*) FILTER (WHERE e.key = _k.key) AS own INTO _gone
            FROM unnest(_expired.pris, _expired.ids, _expired.keys) AS e(pri, id, key) WHERE (e.pri, e.id) < (_k.pri, _k.id);
        _own := NULL;
        IF _t.has_subqueues THEN
            _own := taskyard.subqueue_position(_t.number, _k.key, _k.pri, _k.id, _ready,
                CASE WHEN _lasts ? _k.key THEN ARRAY(SELECT l::bigint FROM jsonb_array_elements_text(_lasts -> _k.key) l) END);
            IF _own.last IS NOT NULL THEN
                _lasts := _lasts || jsonb_build_object(_k.key, _own.last);
            END IF;
        ELSE
            SELECT NULL::bigint AS ahead, true AS is_exact, NULL::boolean AS is_busy INTO _own;
        END IF;
        _count := CASE WHEN _k.state = 6 THEN taskyard.gate_ahead(_t, _k.id) END;
        RETURN QUERY SELECT _k.item, 0::smallint, _k.id, _k.pri, CASE WHEN _k.state = 2 THEN _k.timer END, _ready - _gone.count,
            _exact AND _own.is_exact AND coalesce(_count < {{GATE_LOOKED_MAX}}, true), _own.ahead - _gone.own, _own.is_busy, _count,
            NULL::bigint[], NULL::bigint[], NULL::bigint[], _k.state = 2;
    END LOOP;
END $$;
