-- Drops semaphores.

-- Codes: 0 done, 1 no such semaphore, 2 tasks hold its grants or wait for them, 3 a tube has it, which is named.
CREATE OR REPLACE FUNCTION taskyard.semaphore_drop(_key text, _force boolean, OUT code smallint, OUT tube text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _id integer;
    _grants bigint;
BEGIN
    SELECT t.semaphore_id, t.grant_seq INTO _id, _grants FROM taskyard.semaphore_state t WHERE t.semaphore_id =
        (SELECT s.id FROM taskyard.semaphore s WHERE s.key = _key) FOR UPDATE;
    IF _id IS NULL THEN
        code := 1;
        RETURN;
    END IF;
    -- Tubes are created one at a time, under this lock: none gets the semaphore meanwhile. A batch that creates a tube has
    -- locked its semaphores before, so the state is locked first here as well.
    PERFORM pg_advisory_xact_lock(1952543594);
    SELECT u.name::text INTO tube FROM taskyard.tube u WHERE u.semaphore = _id ORDER BY u.name LIMIT 1;
    IF FOUND THEN
        code := 3;
        RETURN;
    END IF;
    IF NOT _force AND EXISTS (SELECT 1 FROM taskyard.semaphore_task k WHERE k.semaphore_id = _id) THEN
        code := 2;
        RETURN;
    END IF;
    DELETE FROM taskyard.semaphore_event e WHERE e.semaphore_id = _id;
    DELETE FROM taskyard.semaphore_task k WHERE k.semaphore_id = _id;
    DELETE FROM taskyard.semaphore_recheck r WHERE r.semaphore_id = _id;
    DELETE FROM taskyard.semaphore_state t WHERE t.semaphore_id = _id;
    DELETE FROM taskyard.semaphore s WHERE s.id = _id;
    -- Too large a number does no harm if this is rolled back.
    PERFORM setval('taskyard.semaphore_grants', greatest(_grants, (SELECT g.last_value FROM taskyard.semaphore_grants g)));
    code := 0;
END $$;
