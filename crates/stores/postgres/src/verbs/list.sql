-- Lists tasks page by page. What is expired and not removed yet is not listed.

-- A page by id of unfinished tasks in some of the states _states (bits: 1 ready, 2 taken, 4 delayed, 8 buried).
CREATE OR REPLACE FUNCTION taskyard.page_by_id(_number integer, _now bigint, _states integer, _id bigint, _limit bigint,
    OUT ids bigint[], OUT pris bigint[])
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _rare boolean;
    -- A bit for each state of the table.
    _stored integer := (_states & 15) | ((_states & 4) << 4) | ((_states & 8) << 1);
BEGIN
    IF _stored = 0 THEN
        RETURN;
    END IF;
    -- If few tasks are taken or buried, they are read with their own indexes: a sum as key keeps the planner from the index of ids.
    IF _states & 5 = 0 THEN
        SELECT 8 * sum(c.taken + c.buried) < sum(c.ready + c.passed + c.taken + c.delayed + c.buried) INTO _rare
            FROM taskyard.count c WHERE c.tube = _number;
    END IF;
    IF _rare THEN
        SELECT array_agg(p.id), array_agg(p.pri) INTO ids, pris FROM (SELECT u.id, u.pri FROM (
            (SELECT t.id, t.pri FROM taskyard.task t
                WHERE _states & 2 > 0 AND t.tube = _number AND t.state = 1 AND t.id + 0 > _id
                ORDER BY t.id + 0 LIMIT _limit)
            UNION ALL
            (SELECT t.id, t.pri FROM taskyard.task t
                WHERE _states & 8 > 0 AND t.tube = _number AND t.state IN (3, 4) AND t.expires > _now AND t.id + 0 > _id
                ORDER BY t.id + 0 LIMIT _limit)) u
            ORDER BY u.id LIMIT _limit) p;
        RETURN;
    END IF;
    -- The planner takes an inequality for true of nearly all rows, and so reads the index of ids until the page is full. It takes an equality for
    -- rare, and sorted all tasks of the tube that follow.
    SELECT array_agg(p.id), array_agg(p.pri) INTO ids, pris FROM (SELECT t.id, t.pri FROM taskyard.task t
        WHERE t.tube = _number AND t.id > _id AND (_stored >> t.state) & 1 <> 0 AND (t.state IN (1, 2) OR t.expires > _now)
        ORDER BY t.id LIMIT _limit) p;
END $$;

-- A page of the tasks that could be taken, in the order of delivery.
CREATE OR REPLACE FUNCTION taskyard.list_queue(
    _number integer, _subqueues boolean, _now bigint, _pri bigint, _id bigint, _limit bigint)
RETURNS TABLE (id bigint, pri bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    IF _subqueues THEN
        -- Behind an expired head is perhaps another task. Expired tasks are found by their timers, until a tick removes them.
        RETURN QUERY SELECT p.id, p.pri FROM (
            (SELECT s.head_id AS id, s.head_pri AS pri FROM taskyard.subqueue s
                CROSS JOIN LATERAL (SELECT k.expires FROM taskyard.task k
                    WHERE k.tube = _number AND k.id = s.head_id OFFSET 0) t
                WHERE s.tube = _number AND s.head_id IS NOT NULL AND (s.head_pri, s.head_id) > (_pri, _id)
                    AND t.expires > _now
                ORDER BY s.head_pri, s.head_id LIMIT _limit)
            UNION ALL
            (SELECT n.id, n.pri FROM taskyard.task e
                CROSS JOIN LATERAL (SELECT s.key FROM taskyard.subqueue s
                    WHERE s.tube = _number AND s.key = e.subqueue AND s.head_id = e.id OFFSET 0) s
                CROSS JOIN LATERAL (SELECT k.id, k.pri FROM taskyard.task k
                    WHERE k.tube = _number AND k.subqueue = s.key AND k.state < 1 AND k.expires > _now
                    ORDER BY k.state, k.pri, k.id LIMIT 1) n
                WHERE e.tube = _number AND e.timer <= _now AND e.state <> 1 AND e.state = 0
                    AND (n.pri, n.id) > (_pri, _id)
                ORDER BY n.pri, n.id LIMIT _limit)) p
            ORDER BY p.pri, p.id LIMIT _limit;
    ELSE
        RETURN QUERY SELECT t.id, t.pri FROM taskyard.task t
            WHERE t.tube = _number AND t.state = 0 AND (t.pri, t.id) > (_pri, _id) AND t.expires > _now
            ORDER BY t.pri, t.id LIMIT _limit;
    END IF;
END $$;

-- The task that has this key and is not done, if it belongs on a page by id; see page_by_id.
CREATE OR REPLACE FUNCTION taskyard.page_by_key(_number integer, _now bigint, _states integer, _id bigint, _key text,
    OUT ids bigint[], OUT pris bigint[])
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _stored integer := (_states & 15) | ((_states & 4) << 4) | ((_states & 8) << 1);
BEGIN
    SELECT array_agg(t.id), array_agg(t.pri) INTO ids, pris FROM taskyard.key h
        CROSS JOIN LATERAL (SELECT k.id, k.pri, k.state, k.expires FROM taskyard.task k
            WHERE k.tube = _number AND k.id = h.id OFFSET 0) t
        WHERE h.tube = _number AND h.key = _key AND h.until IS NULL AND t.id > _id
            AND (_stored >> t.state) & 1 <> 0 AND (t.state IN (1, 2) OR t.expires > _now);
END $$;

-- A page of a list: by id, where state 16 is done, or without states in the order of the queue; with _key only tasks with this key.
-- status: 0 done, 1 no such tube. Arrays cost less than a row for each task.
CREATE OR REPLACE FUNCTION taskyard.list_page(
    _tube text, _now bigint, _states integer, _pri bigint, _id bigint, _limit bigint, _key text,
    OUT status smallint, OUT ids bigint[], OUT pris bigint[])
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _t taskyard.tube;
    _page record;
BEGIN
    SELECT * INTO _t FROM taskyard.tube t WHERE t.name = _tube;
    _now := coalesce(_now, taskyard.clock());
    _id := coalesce(_id, -1);
    status := CASE WHEN _t.number IS NULL THEN 1 ELSE 0 END;
    IF _states IS NULL THEN
        SELECT array_agg(p.id), array_agg(p.pri) INTO ids, pris FROM taskyard.list_queue(
            _t.number, _t.has_subqueues, _now, coalesce(_pri, -9223372036854775808), _id, _limit) p;
        RETURN;
    END IF;
    IF _key IS NULL THEN
        _page := taskyard.page_by_id(_t.number, _now, _states, _id, _limit);
    ELSE
        _page := taskyard.page_by_key(_t.number, _now, _states, _id, _key);
    END IF;
    ids := _page.ids;
    pris := _page.pris;
    IF _states & 16 > 0 AND _t.keep_done IS NOT NULL THEN
        -- A task that is acked meanwhile is seen once, because all statements of a stable function have one snapshot.
        SELECT array_agg(p.id), array_agg(p.pri) INTO ids, pris FROM (SELECT u.id, u.pri FROM (
            SELECT n.id, n.pri FROM unnest(_page.ids, _page.pris) AS n(id, pri)
            UNION ALL SELECT d.id, d.pri FROM taskyard.list_done(_t, _now, _id, _limit, _key) d) u
            ORDER BY u.id LIMIT _limit) p;
    END IF;
END $$;

-- The same without a key, for servers of earlier versions.
CREATE OR REPLACE FUNCTION taskyard.list_page(
    _tube text, _now bigint, _states integer, _pri bigint, _id bigint, _limit bigint,
    OUT status smallint, OUT ids bigint[], OUT pris bigint[])
LANGUAGE sql STABLE AS $$
    SELECT * FROM taskyard.list_page(_tube, _now, _states, _pri, _id, _limit, NULL)
$$;

-- The same as rows, for servers of still earlier versions. The first one has the status.
CREATE OR REPLACE FUNCTION taskyard.list_tasks(
    _tube text, _now bigint, _states integer, _pri bigint, _id bigint, _limit bigint)
RETURNS TABLE (status smallint, id bigint, pri bigint) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    _page record;
BEGIN
    _page := taskyard.list_page(_tube, _now, _states, _pri, _id, _limit);
    status := _page.status;
    RETURN NEXT;
    RETURN QUERY SELECT 0::smallint, n.id, n.pri FROM unnest(_page.ids, _page.pris) AS n(id, pri);
END $$;
