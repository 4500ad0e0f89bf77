-- For plain SQL: put a task in your own transaction.
--
--     BEGIN;
--     INSERT INTO account (mail) VALUES ('ann@example.org');
--     SELECT taskyard.put('mail', '{"to": "ann@example.org"}');
--     COMMIT;
--
-- The task exists if and only if the transaction commits. The tube must exist. NULL stands for the option of the tube:
--
--     SELECT taskyard.put('mail', '"hello"', pri => 3, ttl => '1 day', ttr => '5 minutes',
--         delay => '10 seconds', subqueue => 'ann');
--     SELECT taskyard.put('mail', '"later"', at => '2030-01-01 00:00+00');
--
-- In a tube with a semaphore a task may have a priority there:
--
--     SELECT taskyard.put('checks', '{"page": 17}', semaphore_priority => 2.5);
--
-- A task may have a key, which no other task of the tube has. While the key is held, which it is for unique_for after the end of the
-- task as well, the function adds nothing and returns the id of the holder; with on_conflict => 'replace' a waiting holder gets the
-- data, priority and times of the call. A put whose key an open transaction has put as well waits for its end, at most lock_timeout.
--
--     SELECT taskyard.put('mail', '{"order": 17}', key => 'order 17', unique_for => '1 hour');
--
-- A user who may call it needs no privilege on the tables:
--
--     GRANT USAGE ON SCHEMA taskyard TO app;
--     GRANT EXECUTE ON FUNCTION taskyard.put, taskyard.put_raw TO app;

-- The MessagePack header of a value of this length: _short is the first byte of the one-byte form for less than _fix, the
-- others are the first bytes of the forms with 8, 16 and 32 bits.
CREATE OR REPLACE FUNCTION taskyard.msgpack_length(
    _length integer, _short integer, _fix integer, _bits8 bytea, _bits16 bytea, _bits32 bytea)
RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN _length < _fix THEN set_byte('\x00'::bytea, 0, _short + _length)
        WHEN _length < 256 AND _bits8 IS NOT NULL
            THEN _bits8 || set_byte('\x00'::bytea, 0, _length)
        WHEN _length < 65536 THEN _bits16 || substring(int4send(_length) FROM 3)
        ELSE _bits32 || int4send(_length)
    END
$$;

-- A number as MessagePack: a whole one in its shortest form, others as a double.
CREATE OR REPLACE FUNCTION taskyard.msgpack_number(_number numeric) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN scale(_number) > 0 OR _number >= 18446744073709551616
            OR _number < -9223372036854775808
            THEN '\xcb'::bytea || float8send(_number::double precision)
        WHEN _number >= 9223372036854775808
            THEN '\xcf'::bytea || int8send((_number - 18446744073709551616)::bigint)
        WHEN _number >= 4294967296 THEN '\xcf'::bytea || int8send(_number::bigint)
        WHEN _number >= 65536 THEN '\xce'::bytea || substring(int8send(_number::bigint) FROM 5)
        WHEN _number >= 256 THEN '\xcd'::bytea || substring(int4send(_number::integer) FROM 3)
        WHEN _number >= 128 THEN '\xcc'::bytea || set_byte('\x00'::bytea, 0, _number::integer)
        WHEN _number >= 0 THEN set_byte('\x00'::bytea, 0, _number::integer)
        WHEN _number >= -32 THEN set_byte('\x00'::bytea, 0, 256 + _number::integer)
        WHEN _number >= -128
            THEN '\xd0'::bytea || set_byte('\x00'::bytea, 0, 256 + _number::integer)
        WHEN _number >= -32768 THEN '\xd1'::bytea || int2send(_number::smallint)
        WHEN _number >= -2147483648 THEN '\xd2'::bytea || int4send(_number::integer)
        ELSE '\xd3'::bytea || int8send(_number::bigint)
    END
$$;

-- JSON as MessagePack, which is what tasks carry.
CREATE OR REPLACE FUNCTION taskyard.msgpack(_value jsonb, _depth integer DEFAULT {{NESTING_MAX}}) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    _text bytea;
    _parts bytea;
    _count integer;
BEGIN
    IF _depth < 1 THEN
        RAISE EXCEPTION 'the data is nested too deeply: at most {{NESTING_MAX}} levels'
            USING ERRCODE = 'program_limit_exceeded';
    END IF;
    IF _value IS NULL THEN
        RETURN NULL;
    END IF;
    CASE jsonb_typeof(_value)
        WHEN 'null' THEN
            RETURN '\xc0';
        WHEN 'boolean' THEN
            RETURN CASE WHEN _value::boolean THEN '\xc3'::bytea ELSE '\xc2'::bytea END;
        WHEN 'number' THEN
            RETURN taskyard.msgpack_number(_value::numeric);
        WHEN 'string' THEN
            _text := convert_to(_value #>> '{}', 'UTF8');
            RETURN taskyard.msgpack_length(octet_length(_text), 160, 32, '\xd9', '\xda', '\xdb')
                || _text;
        WHEN 'array' THEN
            SELECT count(*), string_agg(taskyard.msgpack(e.item, _depth - 1), '' ORDER BY e.place)
                INTO _count, _parts
                FROM jsonb_array_elements(_value) WITH ORDINALITY AS e(item, place);
            RETURN taskyard.msgpack_length(_count, 144, 16, NULL, '\xdc', '\xdd')
                || coalesce(_parts, '');
        ELSE
            SELECT count(*), string_agg(
                taskyard.msgpack(to_jsonb(e.key), _depth) || taskyard.msgpack(e.item, _depth - 1),
                '')
                INTO _count, _parts FROM jsonb_each(_value) AS e(key, item);
            RETURN taskyard.msgpack_length(_count, 128, 16, NULL, '\xde', '\xdf')
                || coalesce(_parts, '');
    END CASE;
END $$;

-- The older forms are dropped, because calls would be ambiguous. Their privileges are given to the new ones, and objects that
-- depend on them keep them under another name.
DO $$
DECLARE
    _old record;
    _acl text := '';
BEGIN
    FOR _old IN SELECT p.oid::regprocedure AS form, p.proname, p.proacl, p.proowner FROM pg_proc p
        WHERE p.pronamespace = 'taskyard'::regnamespace AND p.proname IN ('put', 'put_raw')
            AND NOT 'on_conflict' = ANY (p.proargnames)
    LOOP
        _acl := _acl || coalesce((SELECT string_agg(format('GRANT EXECUTE ON FUNCTION taskyard.%I TO %s%s;',
                _old.proname, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
                CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END), '')
            FROM aclexplode(_old.proacl) a WHERE a.grantee <> _old.proowner), '');
        BEGIN
            EXECUTE 'DROP FUNCTION ' || _old.form;
        EXCEPTION WHEN dependent_objects_still_exist THEN
            EXECUTE format('ALTER FUNCTION %s RENAME TO %I', _old.form, _old.proname || '_before_keys');
        END;
    END LOOP;
    PERFORM set_config('taskyard.putters', _acl, true);
END $$;

-- Refuses a sub-queue that the tube would ignore, or whose name contains a character that changes the direction of text.
CREATE OR REPLACE FUNCTION taskyard.check_subqueue(_tube text, _subqueue text)
RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
    _kind text;
BEGIN
    IF _subqueue IS NULL THEN
        RETURN;
    END IF;
    IF _subqueue ~ '[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]' THEN
        RAISE EXCEPTION 'the name of a sub-queue must not contain a character that changes the direction of text; leave it out'
            USING ERRCODE = 'check_violation';
    END IF;
    SELECT t.kind INTO _kind FROM taskyard.tube t WHERE t.name = _tube AND NOT t.has_subqueues;
    IF FOUND THEN
        RAISE EXCEPTION 'a % tube does not support sub-queues', _kind USING ERRCODE = 'check_violation',
            HINT = 'put without one, or into a tube of the kind utube or utubettl';
    END IF;
END $$;

-- Refuses a key, options of a key without one, or a number of attempts that no store accepts.
CREATE OR REPLACE FUNCTION taskyard.check_key(_key text, _unique_for interval, _on_conflict text, _attempts_max bigint)
RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _key IS NULL AND (_unique_for IS NOT NULL OR _on_conflict IS NOT NULL) THEN
        RAISE EXCEPTION 'unique_for and on_conflict need a key' USING ERRCODE = 'check_violation';
    END IF;
    IF octet_length(_key) NOT BETWEEN 1 AND {{KEY_BYTES_MAX}} THEN
        RAISE EXCEPTION 'a key must have 1 to {{KEY_BYTES_MAX}} bytes, this one has %', octet_length(_key)
            USING ERRCODE = 'check_violation';
    END IF;
    IF _key ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        RAISE EXCEPTION 'a key must not contain a control character' USING ERRCODE = 'check_violation';
    END IF;
    IF _unique_for > make_interval(secs => {{UNIQUE_FOR_SECS_MAX}}) THEN
        RAISE EXCEPTION 'unique_for may be {{UNIQUE_FOR_SECS_MAX}} seconds at most, not %', extract(epoch FROM _unique_for)
            USING ERRCODE = 'check_violation';
    END IF;
    IF _on_conflict NOT IN ('keep', 'replace') THEN
        RAISE EXCEPTION 'on_conflict is keep or replace, not %', _on_conflict USING ERRCODE = 'check_violation';
    END IF;
    IF _attempts_max NOT BETWEEN 1 AND 4294967295 THEN
        RAISE EXCEPTION 'attempts_max of a task must be at least 1; leave it out for that of the tube'
            USING ERRCODE = 'check_violation';
    END IF;
END $$;

-- Raises the error for the status of a put that was refused.
CREATE OR REPLACE FUNCTION taskyard.check_put(_tube text, _status smallint, _accepted boolean, _capacity bigint)
RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _status = 8 THEN
        RAISE EXCEPTION 'tube ''%'' is locked by an open transaction', _tube USING
            ERRCODE = 'lock_not_available', HINT = 'try again when it has ended';
    END IF;
    IF _status = 9 THEN
        RAISE EXCEPTION 'tube ''%'' has no semaphore, so a task there cannot have a semaphore_priority; use pri', _tube
            USING ERRCODE = 'check_violation';
    END IF;
    IF _status <> 0 THEN
        RAISE EXCEPTION 'tube ''%'' does not exist; create it first', _tube
            USING ERRCODE = 'undefined_object';
    END IF;
    IF NOT coalesce(_accepted, true) THEN
        RAISE EXCEPTION 'tube ''%'' has no room for that (capacity %); take some, raise its capacity, or put fewer at once',
            _tube, _capacity USING ERRCODE = 'program_limit_exceeded';
    END IF;
END $$;

-- Puts a task whose payload is MessagePack; returns its id, or that of the task that holds its key.
CREATE OR REPLACE FUNCTION taskyard.put_raw(
    tube text, payload bytea, pri bigint DEFAULT NULL, ttl interval DEFAULT NULL,
    ttr interval DEFAULT NULL, delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    subqueue text DEFAULT NULL, meta bytea DEFAULT NULL, semaphore_priority float8 DEFAULT NULL,
    key text DEFAULT NULL, unique_for interval DEFAULT NULL, on_conflict text DEFAULT NULL,
    attempts_max bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    _put record;
    _at bigint := (extract(epoch FROM at) * 1000000)::bigint;
    _priorities float8[] := CASE WHEN semaphore_priority IS NOT NULL THEN ARRAY[semaphore_priority] END;
BEGIN
    IF pri < 0 THEN
        RAISE EXCEPTION 'a priority must not be negative' USING ERRCODE = 'check_violation';
    END IF;
    IF at IS NOT NULL AND delay IS NOT NULL THEN
        RAISE EXCEPTION 'a task has a start time (at) or a delay, not both; leave one of them out'
            USING ERRCODE = 'check_violation';
    END IF;
    IF semaphore_priority IN ('NaN', 'infinity', '-infinity') THEN
        RAISE EXCEPTION 'a priority for a semaphore must be a finite number, not %', semaphore_priority
            USING ERRCODE = 'check_violation';
    END IF;
    IF payload IS NULL OR octet_length(payload) = 0 THEN
        RAISE EXCEPTION 'a payload must be one value, and NULL is none' USING
            ERRCODE = 'check_violation', HINT = 'for a task without data put ''null''';
    END IF;
    IF octet_length(payload) > {{PAYLOAD_BYTES_MAX}} THEN
        RAISE EXCEPTION 'a payload may have {{PAYLOAD_BYTES_MAX}} bytes, this one has %', octet_length(payload)
            USING ERRCODE = 'program_limit_exceeded';
    END IF;
    IF octet_length(meta) > {{META_BYTES_MAX}} OR octet_length(subqueue) > {{SUBQUEUE_BYTES_MAX}} THEN
        RAISE EXCEPTION 'a meta map may have {{META_BYTES_MAX}} bytes, the name of a sub-queue {{SUBQUEUE_BYTES_MAX}}'
            USING ERRCODE = 'program_limit_exceeded';
    END IF;
    PERFORM taskyard.check_subqueue(tube, subqueue);
    PERFORM taskyard.check_key(key, unique_for, on_conflict, attempts_max);
    IF key IS NULL AND attempts_max IS NULL THEN
        SELECT p.status, p.capacity, p.accepted, p.ids INTO _put FROM taskyard.put_tasks(
            tube, NULL, ARRAY[1], ARRAY[payload], ARRAY[meta], ARRAY[pri + (-9223372036854775808)::bigint],
            ARRAY[taskyard.micros(ttl)], ARRAY[taskyard.micros(ttr)], ARRAY[taskyard.micros(delay)], ARRAY[_at],
            ARRAY[subqueue], _priorities, NULL, NULL) p;
    ELSE
        SELECT p.status, p.capacity, p.accepted, p.ids INTO _put FROM taskyard.put_keyed(
            tube, NULL, ARRAY[1], ARRAY[payload], ARRAY[meta], ARRAY[pri + (-9223372036854775808)::bigint],
            ARRAY[taskyard.micros(ttl)], ARRAY[taskyard.micros(ttr)], ARRAY[taskyard.micros(delay)], ARRAY[_at],
            ARRAY[subqueue], _priorities, ARRAY[key], ARRAY[coalesce(taskyard.micros(unique_for), 0)],
            ARRAY[coalesce(on_conflict = 'replace', false)], ARRAY[attempts_max], NULL) p;
    END IF;
    PERFORM taskyard.check_put(tube, _put.status, _put.accepted[1], _put.capacity);
    PERFORM pg_notify('taskyard', ':' || tube);
    RETURN _put.ids[1];
END $$;

-- Puts a task with this data; returns its id, or that of the task that holds its key.
CREATE OR REPLACE FUNCTION taskyard.put(
    tube text, data jsonb, pri bigint DEFAULT NULL, ttl interval DEFAULT NULL,
    ttr interval DEFAULT NULL, delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    subqueue text DEFAULT NULL, semaphore_priority float8 DEFAULT NULL, key text DEFAULT NULL,
    unique_for interval DEFAULT NULL, on_conflict text DEFAULT NULL, attempts_max bigint DEFAULT NULL)
RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT taskyard.put_raw(tube, taskyard.msgpack(data), pri, ttl, ttr, delay, at, subqueue, NULL,
        semaphore_priority, key, unique_for, on_conflict, attempts_max)
$$;

REVOKE EXECUTE ON FUNCTION taskyard.put, taskyard.put_raw FROM PUBLIC;

DO $$ BEGIN
    EXECUTE current_setting('taskyard.putters');
END $$;
