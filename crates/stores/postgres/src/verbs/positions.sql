-- Shows where waiting tasks are in the queue. Counts few tasks exactly and estimates the number of many from samples, so that the
-- cost does not grow with the tube. All statements of a stable function have one snapshot.
--
-- A sample is the number of rows in a window of ids, whose length is chosen so that it has a certain number of rows and hardly ever many
-- more; of a window with more only these count, with the length that they have. Windows of a fixed length are unbiased also where
-- ids have large holes, because tasks of other priorities were put between. The windows are at irregular places, so that holes in a
-- regular pattern are not always missed.
--
-- Rows are read from a place on in an order for which only one index fits (see set_subqueue_heads), and the end is compared afterwards:
-- an index scan does not stop where a range of (pri, id) ends within a priority. So few rows are read first, then many.

-- Earlier versions.
DROP FUNCTION IF EXISTS taskyard.ready_sampled(integer, bigint[], bigint[], bigint[], float8[], float8[]);
DROP FUNCTION IF EXISTS taskyard.ready_sampled(integer, bigint[], bigint[], bigint[], float8[], float8[], integer);
DROP FUNCTION IF EXISTS taskyard.ready_sampled_by_id(integer, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.ready_sampled_by_id(integer, bigint, bigint, bigint, integer);
DROP FUNCTION IF EXISTS taskyard.ready_estimated(integer, bigint, bigint);

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

-- The priorities of ready tasks before a place; NULL if there are more than _limit. Of each the first id, the end of its ids, and how
-- far its ids are apart, on average and where they are densest, from 8 tasks at some places; NULL if it has few. The first task may be
-- far from all others, or all others be at its side, so its place counts only if no other has tasks.
CREATE OR REPLACE FUNCTION taskyard.ready_priorities(_number integer, _pri bigint, _id bigint, _limit bigint,
    OUT pris bigint[], OUT firsts bigint[], OUT ends bigint[], OUT gaps float8[], OUT smallest float8[])
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET cpu_operator_cost = 1 AS $$
BEGIN
    WITH RECURSIVE found AS (
        (SELECT t.pri, t.id FROM taskyard.task t WHERE t.tube = _number AND t.state = 0 ORDER BY t.pri, t.id LIMIT 1)
        UNION ALL
        SELECT n.pri, n.id FROM found f CROSS JOIN LATERAL (SELECT t.pri, t.id FROM taskyard.task t
            WHERE t.tube = _number AND t.state = 0 AND t.pri > f.pri ORDER BY t.pri, t.id LIMIT 1) n
        WHERE (n.pri, n.id) < (_pri, _id)),
    chosen AS (SELECT f.pri, f.id FROM found f LIMIT _limit + 1),
    ended AS (SELECT s.pri, s.id, e.id + 1 AS ending, greatest(16 / count(*) OVER (), 4) AS probes
        FROM chosen s CROSS JOIN LATERAL (SELECT t.id FROM taskyard.task t
        WHERE t.tube = _number AND t.state = 0
            AND (t.pri, t.id) < (s.pri, CASE WHEN s.pri = _pri THEN _id ELSE 9223372036854775807 END)
        ORDER BY t.pri DESC, t.id DESC LIMIT 1) e
        WHERE (SELECT count(*) FROM chosen) <= _limit)
    SELECT array_agg(e.pri), array_agg(e.id), array_agg(e.ending), array_agg(g.gap), array_agg(g.smallest)
        INTO pris, firsts, ends, gaps, smallest
        FROM ended e CROSS JOIN LATERAL (
            SELECT coalesce(avg(l.id - p.from_id) FILTER (WHERE p.n >= 0), avg(l.id - p.from_id)) / 7 AS gap,
                min(l.id - p.from_id) / 7.0 AS smallest
            FROM (SELECT n, e.id + CASE WHEN n < 0 THEN 0 ELSE floor((e.ending - e.id) * (n + taskyard.shift(n)) / e.probes)
                    END::bigint AS from_id
                FROM generate_series(-1, e.probes - 1) AS n OFFSET 0) p
            CROSS JOIN LATERAL (SELECT t.id FROM taskyard.task t
                WHERE t.tube = _number AND t.state = 0 AND t.pri = e.pri AND t.id >= p.from_id AND t.id < e.ending
                ORDER BY t.pri, t.id OFFSET 7 LIMIT 1) l) g;
END $$;

-- About how many tasks of these priorities are ready, as ready_priorities found them, from so many windows with about _rows and at most
-- _most rows, how many windows have some, and the standard error of that: each window differs from the average of its neighbours by their
-- errors. Windows of different priorities are at different places, so that their errors are independent. A priority with more tasks or more
-- ids gets more windows. One plan is kept, because it costs as much as the windows. Comparisons cost much, so that also for an empty
-- table the index that needs fewest of them is the cheapest.
CREATE OR REPLACE FUNCTION taskyard.ready_sampled(
    _number integer, _pris bigint[], _firsts bigint[], _ends bigint[], _gaps float8[], _smallest float8[], _windows integer,
    _rows integer, _most integer, OUT ahead float8, OUT error float8, OUT hits bigint)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET cpu_operator_cost = 1 AS $$
BEGIN
    WITH part AS (
        SELECT s.pri, s.first_id, s.ending - s.first_id AS length,
            coalesce(least(_rows * s.gap, _most * 15 / 16 * s.smallest), s.ending - s.first_id) AS wanted,
            CASE WHEN s.gap IS NULL THEN 1 ELSE 2 + ceil((_windows - 2) * ((s.ending - s.first_id) / s.gap
                    / sum((s.ending - s.first_id) / s.gap) OVER ()
                + (s.ending - s.first_id) / sum(s.ending - s.first_id) OVER ()) / 2) END::integer AS windows
        FROM unnest(_pris, _firsts, _ends, _gaps, _smallest) AS s(pri, first_id, ending, gap, smallest)),
    place AS (
        SELECT p.pri, n, p.windows, p.length::float8 / p.windows AS share, p.wanted, p.first_id + p.length AS ending,
            p.first_id + p.length::float8 / p.windows
                * (n + CASE WHEN p.wanted * p.windows < p.length
                    THEN taskyard.shift((hashint8(p.pri)::bigint << 16) + n) ELSE 0 END) AS start
        FROM part p CROSS JOIN LATERAL generate_series(0, p.windows - 1) AS n),
    bounds AS MATERIALIZED (
        SELECT b.pri, b.n, b.windows, b.share, ceil(b.start)::bigint AS from_id,
            least(ceil(b.start + least(b.wanted, b.share))::bigint, b.ending) AS to_id
        FROM place b),
    found AS (
        SELECT b.pri, b.n, b.share * CASE WHEN w.rows < _most THEN w.rows / greatest(b.to_id - b.from_id, 1)::float8
            ELSE _most / (w.last - b.from_id + 1)::float8 END AS tasks, b.windows
        FROM bounds b CROSS JOIN LATERAL (SELECT count(*) AS rows, max(r.id) AS last FROM (SELECT t.id FROM taskyard.task t
            WHERE t.tube = _number AND t.state = 0 AND t.pri = b.pri AND t.id >= b.from_id AND t.id < b.to_id
            ORDER BY t.id LIMIT _most) r) w)
    SELECT sum(f.tasks), sqrt(coalesce(sum((f.before + f.behind - 2 * f.tasks) ^ 2 * f.windows / (f.windows - 2)), 0) / 6),
        count(*) FILTER (WHERE f.tasks > 0) INTO ahead, error, hits
        FROM (SELECT f.tasks, lag(f.tasks) OVER near AS before, lead(f.tasks) OVER near AS behind, f.windows FROM found f
            WINDOW near AS (PARTITION BY f.pri ORDER BY f.n)) f;
END $$;

-- About how many of _all ready tasks are before a place, from so many windows of all tasks of the tube by id, the standard error of that, and how many
-- windows have ready tasks; a window has about _rows tasks. The share of the ready tasks is estimated, so that holes between ids do not matter.
-- NULL if no window has a ready task.
CREATE OR REPLACE FUNCTION taskyard.ready_sampled_by_id(_number integer, _pri bigint, _id bigint, _all bigint, _windows integer, _rows integer,
    OUT ahead float8, OUT error float8, OUT hits bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _first bigint;
    _share float8;
    _size float8;
BEGIN
    SELECT a.id, (z.id + 1 - a.id) / _windows::float8 INTO _first, _share
        FROM (SELECT t.id FROM taskyard.task t WHERE t.tube = _number ORDER BY t.id LIMIT 1) a
        CROSS JOIN (SELECT t.id FROM taskyard.task t WHERE t.tube = _number ORDER BY t.id DESC LIMIT 1) z;
    SELECT coalesce(least(avg(l.id - p.from_id) / 15 * _rows, _share), _share) INTO _size
        FROM (SELECT (_first + _share * _windows / 8 * n)::bigint AS from_id FROM generate_series(0, 7) AS n) p
        CROSS JOIN LATERAL (SELECT t.id FROM taskyard.task t WHERE t.tube = _number AND t.id >= p.from_id
            ORDER BY t.id OFFSET 15 LIMIT 1) l;
    WITH bounds AS MATERIALIZED (
        SELECT s.n, ceil(s.start)::bigint AS from_id, ceil(s.start + _size)::bigint AS to_id
        FROM (SELECT n, _first + _share * n + (_share - _size) * taskyard.shift(n) AS start
            FROM generate_series(0, _windows - 1) AS n) s),
    found AS MATERIALIZED (
        SELECT b.n, w.ahead / s.length AS ahead, w.ready / s.length AS ready
        FROM bounds b CROSS JOIN LATERAL (SELECT count(*) AS rows, max(r.id) AS last, count(*) FILTER (WHERE r.state = 0) AS ready,
                count(*) FILTER (WHERE r.state = 0 AND (r.pri, r.id) < (_pri, _id)) AS ahead
            FROM (SELECT t.id, t.pri, t.state FROM taskyard.task t
                WHERE t.tube = _number AND t.id >= b.from_id AND t.id < b.to_id ORDER BY t.id LIMIT 4 * _rows) r) w
        CROSS JOIN LATERAL (SELECT CASE WHEN w.rows < 4 * _rows THEN greatest(b.to_id - b.from_id, 1) ELSE w.last - b.from_id + 1 END::float8
            AS length) s),
    whole AS (SELECT sum(f.ahead) / nullif(sum(f.ready), 0) AS share, _all / nullif(sum(f.ready), 0) AS weight FROM found f)
    SELECT _all * min(w.share), min(w.weight) * sqrt(sum((f.before + f.behind - 2 * f.rest) ^ 2) / 6), count(*) FILTER (WHERE f.ready > 0)
        INTO ahead, error, hits
        FROM whole w CROSS JOIN LATERAL (SELECT r.rest, r.ready, lag(r.rest) OVER near AS before, lead(r.rest) OVER near AS behind
            FROM (SELECT f.n, f.ready, f.ahead - w.share * f.ready AS rest FROM found f) r WINDOW near AS (ORDER BY r.n)) f;
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

-- How many rows a window of _length average gaps between the ids of its priority has, if so many tasks are ahead.
CREATE OR REPLACE FUNCTION taskyard.ready_in_window(_firsts bigint[], _ends bigint[], _gaps float8[], _length integer, _ahead bigint)
RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (SELECT _length * _ahead * sum(p.gap * (p.ending - p.first_id)) / sum(p.ending - p.first_id) ^ 2
        FROM unnest(_firsts, _ends, _gaps) AS p(first_id, ending, gap));
END $$;

-- About how many ready tasks are before a place, of which _before are before an earlier one. A few windows of each priority are read first.
-- If their standard error is too large, longer ones are tried: where short batches of several priorities alternate, each has several
-- batches. Then the cheapest of these follows, by the number of rows that could be read in its time: more windows of each priority, windows of
-- all tasks by id, or to count the tasks from the earlier place, or those behind. Where long batches alternate, each window is within
-- one of them, so thousands are needed, and these are short. Answers also whether it has sampled (0), counted from the earlier place
-- (1) or from the end (2).
CREATE OR REPLACE FUNCTION taskyard.ready_estimated(
    _number integer, _pri bigint, _id bigint, _from_pri bigint, _from_id bigint, _before bigint, OUT ahead bigint, OUT way integer)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _found record := taskyard.ready_priorities(_number, _pri, _id, 64);
    _sample record;
    _all bigint;
    _ready float8;
    _how integer := CASE WHEN _found.pris IS NULL THEN 2 ELSE 1 END;
    _first integer := least(greatest(48, 6 * cardinality(_found.pris)), 256);
    _windows integer[] := ARRAY[_first, CASE _how WHEN 1 THEN 512 ELSE 256 END];
    _length integer := 24;
    _is_within boolean := false;
    _rows float8[] := ARRAY['infinity', NULL];
    _more float8;
    _error float8;
    _window float8[];
BEGIN
    SELECT sum(c.ready), sum(c.ready) / greatest(sum(c.ready + c.passed + c.taken + c.delayed + c.buried), 1)::float8
        INTO _all, _ready FROM taskyard.count c WHERE c.tube = _number;
    way := 0;
    LOOP
        IF _how = 1 THEN
            _sample := taskyard.ready_sampled(_number, _found.pris, _found.firsts, _found.ends, _found.gaps, _found.smallest,
                _windows[1], _length, CASE _length WHEN 3 THEN 15 WHEN 24 THEN 120 ELSE 12000 END);
        ELSE
            _sample := taskyard.ready_sampled_by_id(_number, _pri, _id, _all, _windows[2], CASE WHEN _is_within THEN 4 ELSE 16 END);
        END IF;
        ahead := least(greatest(round(coalesce(_sample.ahead, 0)), _before + 64), _all);
        -- The standard error from few windows is uncertain itself.
        EXIT WHEN _sample.error <= CASE WHEN _windows[_how] < 96 THEN 0.01 ELSE 0.016 END * ahead AND _sample.hits > 8
            OR _windows[_how] = 16000;
        _more := coalesce(_sample.error, ahead) / (0.014 * ahead);
        IF _how = 1 AND _windows[1] = _first THEN
            _error := _more;
            _window := ARRAY[taskyard.ready_in_window(_found.firsts, _found.ends, _found.gaps, 24, ahead),
                taskyard.ready_in_window(_found.firsts, _found.ends, _found.gaps, 40, ahead)];
            IF 2 * _first * _window[2] < least(24000, ahead / 4) THEN
                _windows[1] := 2 * _first;
                _length := 40;
                CONTINUE;
            END IF;
            _is_within := true;
        ELSIF _how = 1 AND _windows[1] = 2 * _first AND _more > 0.63 * _error AND _sample.hits < 0.8 * _windows[1] THEN
            _is_within := true;
            _length := 24;
        END IF;
        -- The error falls with the root of the number of windows, and faster where these are closer than batches are long.
        _windows[_how] := least(_windows[_how] * greatest(_more ^ CASE WHEN _is_within THEN 1.5 ELSE 2 END, 1.6), 16000);
        _length := CASE WHEN _is_within AND _windows[1] > 256 THEN 3 ELSE _length END;
        _rows[_how] := _windows[_how] * CASE WHEN _how = 2 OR _length = 3 THEN 16
            ELSE 10 + coalesce(_window[CASE _length WHEN 24 THEN 1 ELSE 2 END], _length) END;
        -- By id, most windows are needed if each has only tasks ahead or only others; there may be a sixteenth of it.
        _rows[2] := coalesce(_rows[2], greatest(8192, (_all::float8 / ahead - 1) / 0.014 ^ 2) / _ready);
        IF least(ahead - _before, _all - ahead) <= least(_rows[1], _rows[2]) THEN
            way := CASE WHEN ahead - _before <= _all - ahead THEN 1 ELSE 2 END;
            ahead := CASE way WHEN 1 THEN _before + taskyard.ready_counted(_number, _from_pri, _from_id, _pri, _id)
                ELSE _all - taskyard.ready_counted(_number, _pri, _id, 9223372036854775807, 9223372036854775807) END;
            EXIT;
        END IF;
        _how := CASE WHEN _rows[1] <= _rows[2] THEN 1 ELSE 2 END;
    END LOOP;
END $$;

-- How many ready tasks are before a place, of which _before are before an earlier one, and whether that is exact, if _before is. A few
-- are counted; if there are more, they are estimated, and counted after all if there seem to be not many.
CREATE OR REPLACE FUNCTION taskyard.ready_ahead(
    _number integer, _pri bigint, _id bigint, _from_pri bigint, _from_id bigint, _before bigint, _is_exact boolean,
    OUT ahead bigint, OUT is_exact boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _count bigint := taskyard.ready_between(_number, _from_pri, _from_id, _pri, _id, 64);
    _estimate record;
BEGIN
    is_exact := _is_exact;
    IF _count < 64 THEN
        ahead := _before + _count;
        RETURN;
    END IF;
    _estimate := taskyard.ready_estimated(_number, _pri, _id, _from_pri, _from_id, _before);
    IF _estimate.way = 0 AND _estimate.ahead - _before < 2 * {{AHEAD_COUNTED_MAX}} THEN
        _count := taskyard.ready_between(_number, _from_pri, _from_id, _pri, _id, {{AHEAD_COUNTED_MAX}});
        IF _count < {{AHEAD_COUNTED_MAX}} THEN
            ahead := _before + _count;
            RETURN;
        END IF;
    END IF;
    ahead := CASE WHEN _estimate.way > 0 THEN _estimate.ahead ELSE greatest(_estimate.ahead, _before + _count) END;
    is_exact := CASE _estimate.way WHEN 0 THEN false WHEN 1 THEN _is_exact ELSE true END;
END $$;

-- The place of a task in its sub-queue. Beyond the tasks that are counted, the sub-queue is taken to have the same share of all
-- ready tasks as before; _ready is the number of these before the task.
CREATE OR REPLACE FUNCTION taskyard.subqueue_position(_number integer, _key text, _pri bigint, _id bigint, _ready bigint,
    OUT ahead bigint, OUT is_exact boolean, OUT is_busy boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _limit bigint;
    _last_pri bigint;
    _last_id bigint;
BEGIN
    FOREACH _limit IN ARRAY ARRAY[64, {{SUBQUEUE_COUNTED_MAX}}] LOOP
        SELECT count(*), max(r.pri) INTO ahead, _last_pri FROM (SELECT t.pri, t.id FROM taskyard.task t
            WHERE t.tube = _number AND t.subqueue = _key AND t.state < 1 ORDER BY t.state, t.pri, t.id LIMIT _limit) r
            WHERE (r.pri, r.id) < (_pri, _id);
        EXIT WHEN ahead < _limit;
    END LOOP;
    is_exact := ahead < {{SUBQUEUE_COUNTED_MAX}};
    IF NOT is_exact THEN
        SELECT t.id INTO _last_id FROM taskyard.task t
            WHERE t.tube = _number AND t.subqueue = _key AND t.state < 1
            ORDER BY t.state, t.pri, t.id OFFSET {{SUBQUEUE_COUNTED_MAX}} - 1 LIMIT 1;
        ahead := round(ahead * greatest(_ready::float8
            / greatest((taskyard.ready_estimated(_number, _last_pri, _last_id, -9223372036854775808, -1, 0)).ahead, ahead), 1));
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
            _own := taskyard.subqueue_position(_t.number, _k.key, _k.pri, _k.id, _ready);
        ELSE
            SELECT NULL::bigint AS ahead, true AS is_exact, NULL::boolean AS is_busy INTO _own;
        END IF;
        _count := CASE WHEN _k.state = 6 THEN taskyard.gate_ahead(_t, _k.id) END;
        RETURN QUERY SELECT _k.item, 0::smallint, _k.id, _k.pri, CASE WHEN _k.state = 2 THEN _k.timer END, _ready - _gone.count,
            _exact AND _own.is_exact AND coalesce(_count < {{GATE_LOOKED_MAX}}, true), _own.ahead - _gone.own, _own.is_busy, _count,
            NULL::bigint[], NULL::bigint[], NULL::bigint[], _k.state = 2;
    END LOOP;
END $$;
