-- Lists the holders or the waiting tasks of a semaphore, the best first, a page at a time.

-- The first row has the code (1: no such semaphore); the others have a NULL there and show tasks as semaphore_look does, then
-- the number of arrival and the name of the tube. Only tasks behind (_rank, _seq) are shown.
CREATE OR REPLACE FUNCTION taskyard.semaphore_members(_key text, _holders boolean, _rank float8, _seq bigint,
    _count bigint)
RETURNS TABLE (code smallint, deadline bigint, news boolean, task bigint, status text,
    priority float8, enqueued bigint, moment bigint, grant_no bigint, granted bigint,
    lease_until bigint, pinned boolean, seq bigint, tube text)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    _id integer;
BEGIN
    SELECT s.id INTO _id FROM taskyard.semaphore s WHERE s.key = _key;
    code := CASE WHEN _id IS NULL THEN 1 ELSE 0 END;
    news := false;
    RETURN NEXT;
    _rank := coalesce(_rank, '-infinity');
    _seq := coalesce(_seq, -1);
    -- Each order by itself, so that each has its index.
    RETURN QUERY SELECT NULL::smallint, NULL::bigint, NULL::boolean,
        CASE WHEN t.task_id < 0 THEN taskyard.gated_id(t.task_id) ELSE t.task_id END, lower(t.status::text),
        t.priority, t.enqueued, t.moment, t.grant_no, t.granted, t.lease_until, t.pinned, t.seq, u.name::text
        FROM (
            (SELECT k.* FROM taskyard.semaphore_task k WHERE NOT _holders AND k.semaphore_id = _id
                AND k.status = 'WAIT' AND (k.rank, k.seq) > (_rank, _seq) ORDER BY k.rank, k.seq LIMIT _count)
            UNION ALL
            (SELECT k.* FROM taskyard.semaphore_task k WHERE _holders AND k.semaphore_id = _id
                AND k.status = 'ACQUIRED' AND NOT k.pinned AND (k.rank, k.seq) > (_rank, _seq)
                ORDER BY k.rank, k.seq LIMIT _count)
            UNION ALL
            (SELECT k.* FROM taskyard.semaphore_task k WHERE _holders AND k.semaphore_id = _id
                AND k.pinned AND (k.rank, k.seq) > (_rank, _seq) ORDER BY k.rank, k.seq LIMIT _count)
            UNION ALL
            (SELECT k.* FROM taskyard.semaphore_task k WHERE _holders AND k.semaphore_id = _id
                AND k.status = 'TRY_RELEASE' AND (k.rank, k.seq) > (_rank, _seq)
                ORDER BY k.rank, k.seq LIMIT _count)) t
        LEFT JOIN taskyard.tube u ON u.number = taskyard.gated_tube(t.task_id)
        ORDER BY t.rank, t.seq LIMIT _count;
END $$;
