-- Retry policies and rate limits of tubes, computed exactly as the core does.

-- The delay of a task after its failed attempt of this number, from 1, by the retry policy of its tube and the random number of the
-- command. All numbers are doubles or integers that doubles represent, so that every store has the same result.
CREATE OR REPLACE FUNCTION taskyard.retry_delay(_t taskyard.tube, _attempt bigint, _seed bigint, _id bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    _value float8 := _t.retry_delay;
    _most float8 := _t.retry_delay_max;
    _x bigint := (coalesce(_seed, 0) + _id) % 67108859;
BEGIN
    IF NOT _t.has_times THEN
        RETURN 0;
    END IF;
    FOR _n IN 2 .. least(_attempt, {{RETRY_GROWTH_MAX}} + 1) LOOP
        EXIT WHEN _value >= _most;
        _value := _value * (_t.retry_factor / 1e3::float8);
    END LOOP;
    FOR _n IN 1 .. 2 LOOP
        _x := ((_x * _x % 67108859) * _x + 12345) % 67108859;
    END LOOP;
    RETURN trunc(least(_value, _most)
        * (1::float8 + _t.retry_jitter / 1e3::float8 * ((2 * _x)::float8 / 67108858::float8 - 1::float8)))::bigint;
END $$;

-- The level of a token bucket at _now that had this level at _at.
CREATE OR REPLACE FUNCTION taskyard.refilled(_t taskyard.tube, _level bigint, _at bigint, _now bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN _now < _at THEN least(_level, _t.rate_burst * _t.rate_per)
        WHEN _now - _at >= (greatest(_t.rate_burst * _t.rate_per - _level, 0) + _t.rate_count - 1) / _t.rate_count
            THEN _t.rate_burst * _t.rate_per
        ELSE _level + (_now - _at) * _t.rate_count
    END
$$;

-- How many deliveries the rate limit of a tube allows now, and if none, when the next one; both NULL without a limit.
CREATE OR REPLACE FUNCTION taskyard.tokens(_t taskyard.tube, _now bigint, OUT tokens bigint, OUT next bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _level bigint;
BEGIN
    IF _t.rate_count IS NULL THEN
        RETURN;
    END IF;
    SELECT taskyard.refilled(_t, b.level, b.at, _now) INTO _level FROM taskyard.bucket b WHERE b.tube = _t.number;
    tokens := coalesce(_level, _t.rate_burst * _t.rate_per) / _t.rate_per;
    IF tokens = 0 THEN
        next := _now + (_t.rate_per - _level + _t.rate_count - 1) / _t.rate_count;
    END IF;
END $$;

-- Locks the bucket of a tube with a rate limit until the end of the transaction, and returns how many tokens it has now. A bucket whose
-- moment is later, because the clock was set back, is stored with the earlier one.
CREATE OR REPLACE FUNCTION taskyard.lock_bucket(_t taskyard.tube, _now bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _bucket taskyard.bucket;
    _level bigint;
BEGIN
    SELECT b.* INTO _bucket FROM taskyard.bucket b WHERE b.tube = _t.number FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO taskyard.bucket VALUES (_t.number, _t.rate_burst * _t.rate_per, 0) ON CONFLICT (tube) DO NOTHING;
        SELECT b.* INTO _bucket FROM taskyard.bucket b WHERE b.tube = _t.number FOR UPDATE;
    END IF;
    _level := taskyard.refilled(_t, _bucket.level, _bucket.at, _now);
    IF _bucket.at > _now THEN
        UPDATE taskyard.bucket b SET level = _level, at = _now WHERE b.tube = _t.number;
    END IF;
    RETURN _level / _t.rate_per;
END $$;

-- Takes the tokens of these deliveries from the locked bucket of a tube. Returns when it has the next one, if it has none left although
-- tasks are ready.
CREATE OR REPLACE FUNCTION taskyard.spend_tokens(_t taskyard.tube, _given bigint, _now bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _left record;
BEGIN
    IF _given > 0 THEN
        UPDATE taskyard.bucket b
            SET level = greatest(taskyard.refilled(_t, b.level, b.at, _now) - _given * _t.rate_per, 0), at = _now
            WHERE b.tube = _t.number;
    END IF;
    _left := taskyard.tokens(_t, _now);
    IF _left.tokens = 0 AND NOT _t.paused
        AND taskyard.has_ready_after(_t.number, _t.has_subqueues, -9223372036854775808, -1)
    THEN
        RETURN _left.next;
    END IF;
    RETURN NULL;
END $$;

-- Sets or removes the rate limit of a tube. Whole tokens of the limit before stay, at most the new burst.
CREATE OR REPLACE FUNCTION taskyard.set_rate(
    _number integer, _rate_count bigint, _rate_per bigint, _rate_burst bigint, _now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _t taskyard.tube;
    _tokens bigint;
BEGIN
    SELECT * INTO _t FROM taskyard.tube t WHERE t.number = _number;
    IF (_t.rate_count, _t.rate_per, _t.rate_burst) IS NOT DISTINCT FROM (_rate_count, _rate_per, _rate_burst) THEN
        RETURN;
    END IF;
    _now := coalesce(_now, taskyard.clock());
    _tokens := least((SELECT k.tokens FROM taskyard.tokens(_t, _now) k), _rate_burst);
    UPDATE taskyard.tube t SET rate_count = _rate_count, rate_per = _rate_per, rate_burst = _rate_burst
        WHERE t.number = _number;
    DELETE FROM taskyard.bucket b WHERE b.tube = _number;
    IF _rate_count IS NOT NULL THEN
        INSERT INTO taskyard.bucket VALUES (_number, coalesce(_tokens, _rate_burst) * _rate_per,
            CASE WHEN _t.rate_count IS NULL THEN 0 ELSE _now END);
    END IF;
END $$;

-- Sets or removes the retry policy of a tube.
CREATE OR REPLACE FUNCTION taskyard.set_retry(
    _number integer, _delay bigint, _factor bigint, _delay_max bigint, _jitter bigint, _lost boolean) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE taskyard.tube t SET retry_delay = _delay, retry_factor = _factor, retry_delay_max = _delay_max,
        retry_jitter = _jitter, retry_lost = _lost WHERE t.number = _number
$$;

-- As create_queue, with a retry policy and a rate limit.
CREATE OR REPLACE FUNCTION taskyard.create_paced(
    _tube text, _kind text, _temporary boolean, _capacity bigint, _ttl bigint, _ttr bigint,
    _delay bigint, _pri bigint, _attempts_max bigint, _ttl_kills_taken boolean, _paused boolean,
    _tubes_max bigint, _semaphore text, _queue_num bigint, _keep_done bigint, _keep_done_max bigint,
    _retry_delay bigint, _retry_factor bigint, _retry_delay_max bigint, _retry_jitter bigint, _retry_lost boolean,
    _rate_count bigint, _rate_per bigint, _rate_burst bigint,
    OUT status smallint, OUT number integer, OUT other text)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT c.status, c.number, c.other INTO status, number, other FROM taskyard.create_queue(_tube, _kind, _temporary,
        _capacity, _ttl, _ttr, _delay, _pri, _attempts_max, _ttl_kills_taken, _paused, _tubes_max, _semaphore,
        _queue_num, _keep_done, _keep_done_max) c;
    IF status = 0 AND _retry_delay IS NOT NULL THEN
        PERFORM taskyard.set_retry(number, _retry_delay, _retry_factor, _retry_delay_max, _retry_jitter, _retry_lost);
    END IF;
    IF status = 0 AND _rate_count IS NOT NULL THEN
        PERFORM taskyard.set_rate(number, _rate_count, _rate_per, _rate_burst, 0);
    END IF;
END $$;

-- As alter_tube, with a retry policy and a rate limit.
CREATE OR REPLACE FUNCTION taskyard.alter_paced(
    _tube text, _paused boolean, _set_capacity boolean, _capacity bigint, _set_ttl boolean,
    _ttl bigint, _set_ttr boolean, _ttr bigint, _set_delay boolean, _delay bigint, _pri bigint,
    _set_attempts_max boolean, _attempts_max bigint, _set_keep_done boolean, _keep_done bigint, _keep_done_max bigint,
    _set_retry boolean, _retry_delay bigint, _retry_factor bigint, _retry_delay_max bigint, _retry_jitter bigint,
    _retry_lost boolean, _set_rate boolean, _rate_count bigint, _rate_per bigint, _rate_burst bigint, _now bigint)
RETURNS SETOF taskyard.tube_info LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _number integer;
BEGIN
    PERFORM taskyard.lock_tube(_tube);
    SELECT t.number INTO _number FROM taskyard.tube t WHERE t.name = _tube;
    IF _set_retry THEN
        PERFORM taskyard.set_retry(_number, _retry_delay, _retry_factor, _retry_delay_max, _retry_jitter, _retry_lost);
    END IF;
    IF _number IS NOT NULL AND _set_rate THEN
        PERFORM taskyard.set_rate(_number, _rate_count, _rate_per, _rate_burst, _now);
    END IF;
    PERFORM taskyard.alter_tube(_tube, _paused, _set_capacity, _capacity, _set_ttl, _ttl, _set_ttr, _ttr, _set_delay,
        _delay, _pri, _set_attempts_max, _attempts_max, _set_keep_done, _keep_done, _keep_done_max);
    RETURN QUERY SELECT * FROM taskyard.show_tubes(_tube, _now);
END $$;
