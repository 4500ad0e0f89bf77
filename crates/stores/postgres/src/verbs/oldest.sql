-- Since when the oldest takeable task of a tube is ready, regardless of a pause. Within a priority ids are in the order of
-- puts, so behind the first task that was ready at once none is older; in front of it there may be some that were delayed or
-- released. At most OLDEST_LOOKED_MAX tasks are read, as in the core: beyond them there may be an older one.
CREATE OR REPLACE FUNCTION taskyard.oldest_ready(_number integer, _has_subqueues boolean) RETURNS bigint
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    _pri bigint := -9223372036854775808;
    _id bigint := -1;
    _since bigint;
    _created bigint;
    _oldest bigint;
BEGIN
    FOR i IN 1 .. {{OLDEST_LOOKED_MAX}} LOOP
        IF _has_subqueues THEN
            SELECT s.head_pri, s.head_id INTO _pri, _id FROM taskyard.subqueue s
                WHERE s.tube = _number AND s.head_id IS NOT NULL AND (s.head_pri, s.head_id) > (_pri, _id)
                ORDER BY s.head_pri, s.head_id LIMIT 1;
            EXIT WHEN NOT FOUND;
            SELECT t.since, t.created INTO _since, _created FROM taskyard.task t
                WHERE t.tube = _number AND t.id = _id;
        ELSE
            SELECT t.pri, t.id, t.since, t.created INTO _pri, _id, _since, _created FROM taskyard.task t
                WHERE t.tube = _number AND t.state = 0 AND (t.pri, t.id) > (_pri, _id)
                ORDER BY t.pri, t.id LIMIT 1;
            EXIT WHEN NOT FOUND;
        END IF;
        _oldest := least(_oldest, coalesce(_since, _created));
        IF coalesce(_since, _created) = _created THEN
            -- Continue with the next priority.
            _id := 9223372036854775807;
        END IF;
    END LOOP;
    RETURN _oldest;
END $$;

