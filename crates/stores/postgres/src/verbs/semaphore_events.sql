-- Events of semaphores: handed out at least once, until they are acknowledged.

-- Hands out events that are due: of each grant only the first, so that a later one never arrives before an earlier one.
-- The first row has the code (1: no such semaphore).
DROP FUNCTION IF EXISTS taskyard.semaphore_fetch(text, bigint, bigint);

CREATE FUNCTION taskyard.semaphore_fetch(_key text, _now bigint, _count bigint)
RETURNS TABLE (code smallint, id bigint, key text, task bigint, grant_no bigint, kind text,
    attempts integer, tube text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    _id integer;
    _due bigint[];
BEGIN
    _now := coalesce(_now, taskyard.clock());
    SELECT s.id INTO _id FROM taskyard.semaphore s WHERE s.key = _key;
    code := CASE WHEN _key IS NOT NULL AND _id IS NULL THEN 1 ELSE 0 END;
    RETURN NEXT;
    IF code = 1 THEN
        RETURN;
    END IF;
    -- Two searches, so that each has its index and does not read the due events of other semaphores. OFFSET 0, or a plan may
    -- compare every event with every other.
    IF _key IS NULL THEN
        _due := ARRAY(SELECT e.id FROM taskyard.semaphore_event e
            WHERE e.next_at <= _now
                AND NOT EXISTS (SELECT 1 FROM taskyard.semaphore_event f
                    WHERE f.semaphore_id = e.semaphore_id AND f.task_id = e.task_id
                        AND f.grant_no = e.grant_no AND f.id < e.id OFFSET 0)
            ORDER BY e.next_at, e.id LIMIT _count FOR UPDATE OF e SKIP LOCKED);
    ELSE
        _due := ARRAY(SELECT e.id FROM taskyard.semaphore_event e
            WHERE e.semaphore_id = _id AND e.next_at <= _now
                AND NOT EXISTS (SELECT 1 FROM taskyard.semaphore_event f
                    WHERE f.semaphore_id = e.semaphore_id AND f.task_id = e.task_id
                        AND f.grant_no = e.grant_no AND f.id < e.id OFFSET 0)
            ORDER BY e.next_at, e.id LIMIT _count FOR UPDATE OF e SKIP LOCKED);
    END IF;
    RETURN QUERY
        WITH told AS (
            UPDATE taskyard.semaphore_event e
            SET attempts = e.attempts + 1,
                next_at = _now + least(30000000::bigint << least(e.attempts, 10), 600000000)
            FROM unnest(_due) WITH ORDINALITY AS d(id, n)
            CROSS JOIN LATERAL (SELECT k.ctid AS place FROM taskyard.semaphore_event k
                WHERE k.id = d.id OFFSET 0) k
            WHERE e.ctid = k.place
            RETURNING e.id, d.n, e.semaphore_id, e.task_id, e.grant_no, e.kind, e.attempts)
        SELECT NULL::smallint, t.id, s.key::text,
            CASE WHEN t.task_id < 0 THEN taskyard.gated_id(t.task_id) ELSE t.task_id END,
            t.grant_no, t.kind, t.attempts, u.name::text
        FROM told t JOIN taskyard.semaphore s ON s.id = t.semaphore_id
        LEFT JOIN taskyard.tube u ON u.number = taskyard.gated_tube(t.task_id) ORDER BY t.n;
END $$;

-- Deletes acknowledged events; returns how many there were, and whether later events had to wait for them.
CREATE OR REPLACE FUNCTION taskyard.semaphore_acknowledge(_ids bigint[],
    OUT arrived bigint, OUT news boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _e record;
BEGIN
    arrived := 0;
    news := false;
    -- The acknowledgement of a grant with a time limit for it changes the grant, which needs the lock of its semaphore.
    PERFORM 1 FROM taskyard.semaphore_state t WHERE t.semaphore_id = ANY (ARRAY(
        SELECT e.semaphore_id FROM taskyard.semaphore_event e
        JOIN taskyard.semaphore s ON s.id = e.semaphore_id
        WHERE e.id = ANY (_ids) AND e.kind = 'acquired'
            AND EXISTS (SELECT 1 FROM taskyard.semaphore_task k WHERE k.semaphore_id = e.semaphore_id
                AND k.task_id = e.task_id AND k.grant_no = e.grant_no AND k.ack_by IS NOT NULL OFFSET 0)))
        ORDER BY t.semaphore_id FOR UPDATE;
    -- In the order of their numbers, like all statements that delete several.
    PERFORM 1 FROM taskyard.semaphore_event e WHERE e.id = ANY (_ids) ORDER BY e.id FOR UPDATE;
    FOR _e IN DELETE FROM taskyard.semaphore_event e WHERE e.id = ANY (_ids) RETURNING e.* LOOP
        arrived := arrived + 1;
        IF _e.kind = 'acquired' THEN
            UPDATE taskyard.semaphore_task k SET ack_by = NULL
                WHERE k.semaphore_id = _e.semaphore_id AND k.task_id = _e.task_id
                    AND k.grant_no = _e.grant_no AND k.ack_by IS NOT NULL;
        END IF;
        news := news OR EXISTS (SELECT 1 FROM taskyard.semaphore_event f
            WHERE f.semaphore_id = _e.semaphore_id AND f.task_id = _e.task_id
                AND f.grant_no = _e.grant_no);
    END LOOP;
END $$;
