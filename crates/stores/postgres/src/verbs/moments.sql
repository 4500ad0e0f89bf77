-- Times, spans and row locks.

-- Functions of earlier versions that have other names now.
DROP FUNCTION IF EXISTS taskyard.forget_server(bytea, bigint);
DROP FUNCTION IF EXISTS taskyard.heard_after(bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.insert_tasks(taskyard.tube, bigint, bytea[], bytea[], bigint[], bigint[], bigint[], bigint[],
    bigint[], text[], float8[], bigint[], boolean[]);
DROP FUNCTION IF EXISTS taskyard.list_by_id(integer, bigint, integer, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.list_done(taskyard.tube, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.note_settled(boolean, bigint);
DROP FUNCTION IF EXISTS taskyard.part_sessions(bytea, bytea[], bigint);
DROP FUNCTION IF EXISTS taskyard.regate(taskyard.tube, bigint[], bigint);
DROP FUNCTION IF EXISTS taskyard.semaphore_came(taskyard.semaphore_state, float8, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.semaphore_forget(integer, bigint, bigint);
DROP FUNCTION IF EXISTS taskyard.semaphore_left(taskyard.semaphore_state, bigint);
DROP FUNCTION IF EXISTS taskyard.settle_subqueues(integer, text[]);

-- This database's clock, in microseconds.
CREATE OR REPLACE FUNCTION taskyard.clock() RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- A moment moved by a span; beyond the representable, and for a span of a hundred years, the result is never.
CREATE OR REPLACE FUNCTION taskyard.later(_moment bigint, _span bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN _span >= {{FOREVER}} OR _moment > 9223372036854775807 - _span
        THEN 9223372036854775807
        ELSE _moment + _span
    END
$$;

-- The value of the column timer for a moment.
CREATE OR REPLACE FUNCTION taskyard.timer(_moment bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT nullif(_moment, 9223372036854775807)
$$;

-- An interval in microseconds: never negative, at most a hundred years.
CREATE OR REPLACE FUNCTION taskyard.micros(_interval interval) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN _interval IS NOT NULL THEN
        least(greatest((extract(epoch FROM _interval) * 1000000)::bigint, 0), {{FOREVER}})
    END
$$;

-- The next timer of a tube, without moments before _from.
CREATE OR REPLACE FUNCTION taskyard.next_timer(_number integer, _from bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN least(
        (SELECT k.timer FROM taskyard.task k WHERE k.tube = _number AND k.timer >= _from
            AND k.state = 1 ORDER BY k.timer LIMIT 1),
        (SELECT k.timer FROM taskyard.task k WHERE k.tube = _number AND k.timer >= _from
            AND k.state <> 1 ORDER BY k.timer LIMIT 1));
END $$;

-- How many tasks more a tube can hold, if it has a capacity.
CREATE OR REPLACE FUNCTION taskyard.room(_number integer, _capacity bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF _capacity IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN greatest(0, _capacity - (
        SELECT coalesce(sum(c.ready + c.passed + c.taken + c.delayed + c.buried), 0)
        FROM taskyard.count c WHERE c.tube = _number));
END $$;

-- Locks these tasks of a tube, always in the order of their ids, and returns where they lie: there they stay until this
-- transaction changes them itself. A statement that changes many tasks selects them by their places and nothing else: for
-- `id = ANY (...)`, or any condition that an index serves, a plan made while the table is small would always read the whole
-- tube.
CREATE OR REPLACE FUNCTION taskyard.lock_tasks(_number integer, _ids bigint[]) RETURNS tid[]
LANGUAGE sql VOLATILE AS $$
    SELECT array_agg(t.place)
        FROM (SELECT u.id FROM unnest(_ids) AS u(id) ORDER BY u.id) i
        CROSS JOIN LATERAL (SELECT k.ctid AS place FROM taskyard.task k
            WHERE k.tube = _number AND k.id = i.id FOR UPDATE OFFSET 0) t
$$;
