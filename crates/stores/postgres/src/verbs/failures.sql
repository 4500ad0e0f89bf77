-- Stores failed deliveries.

-- The failures of a task with one more, at the moment _at and with this error; the oldest is removed if there are too many. The other
-- arguments are the columns of the task before its delivery ends: one that is not taken fails after no time. The form is that of the
-- core: when it ended (8 bytes), which attempt it was (4), how long it lasted (8), the length of the worker's name (1) and of the error
-- (2), then both texts.
CREATE OR REPLACE FUNCTION taskyard.with_failure(
    _failures bytea, _state smallint, _start bigint, _attempts bigint, _worker text, _at bigint, _error bytea)
RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    _run bigint := CASE WHEN _state = 1 THEN least(greatest(_at - _start, 0), {{FOREVER}}) ELSE 0 END;
    _name bytea := CASE WHEN _state = 1 THEN convert_to(coalesce(_worker, ''), 'UTF8') ELSE '' END;
    -- Where each failure ends.
    _ends integer[] := '{}';
    _end integer := 0;
BEGIN
    WHILE _end < octet_length(_failures) LOOP
        _end := _end + 23 + get_byte(_failures, _end + 20)
            + get_byte(_failures, _end + 21) * 256 + get_byte(_failures, _end + 22);
        _ends := _ends || _end;
    END LOOP;
    _end := coalesce(_ends[cardinality(_ends) + 1 - {{FAILURES_MAX}}], 0);
    RETURN substring(coalesce(_failures, '') FROM _end + 1)
        || int8send(_at) || substring(int8send(least(_attempts + 1, 4294967295)) FROM 5) || int8send(_run)
        || set_byte('\x00'::bytea, 0, octet_length(_name)) || substring(int4send(octet_length(_error)) FROM 3)
        || _name || _error;
END $$;
