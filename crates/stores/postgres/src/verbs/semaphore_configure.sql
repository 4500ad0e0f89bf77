-- Creates, changes and shows semaphores.

DROP FUNCTION IF EXISTS taskyard.semaphore_show(text);
DROP FUNCTION IF EXISTS taskyard.semaphore_configure(text, boolean, bigint, integer, integer, integer, float8,
    bigint, bigint, boolean, integer, bigint, boolean, boolean, bigint, boolean, bigint, boolean, boolean);

-- Shows one semaphore or all, by key. The waiting tasks are counted, so this is not for frequent calls.
CREATE OR REPLACE FUNCTION taskyard.semaphore_show(_key text)
RETURNS TABLE (code smallint, deadline bigint, news boolean, key text, active integer,
    try_release integer, margin float8, min_hold bigint, cool_down bigint, max_revoking integer,
    revoke_grace bigint, force boolean, lease bigint, ack_timeout bigint, shed boolean,
    drop_expired boolean, waiting bigint, delayed bigint, acquired integer, revoking integer,
    events bigint, next_event bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT 0::smallint, NULL::bigint, false, s.key::text, s.active, s.try_release, s.margin,
        s.min_hold, s.cool_down, s.max_revoking, s.revoke_grace, s.force, s.lease, s.ack_timeout,
        s.shed, s.drop_expired,
        (SELECT count(*) FROM taskyard.semaphore_task k
            WHERE k.semaphore_id = s.id AND k.status = 'WAIT'),
        (SELECT count(*) FROM taskyard.semaphore_task k
            WHERE k.semaphore_id = s.id AND k.status = 'DELAYED'),
        t.acquired, t.revoking,
        (SELECT count(*) FROM taskyard.semaphore_event e WHERE e.semaphore_id = s.id),
        -- Of each grant only the first is handed out. OFFSET 0, or a plan may compare every event with every other.
        (SELECT e.next_at FROM taskyard.semaphore_event e WHERE e.semaphore_id = s.id
            AND NOT EXISTS (SELECT 1 FROM taskyard.semaphore_event f
                WHERE f.semaphore_id = e.semaphore_id AND f.task_id = e.task_id
                    AND f.grant_no = e.grant_no AND f.id < e.id OFFSET 0)
            ORDER BY e.next_at, e.id LIMIT 1)
    FROM taskyard.semaphore s JOIN taskyard.semaphore_state t ON t.semaphore_id = s.id
    WHERE _key IS NULL OR s.key = _key
    ORDER BY s.key
$$;

-- Creates a semaphore with the default options unless there are _most already. Returns its number; NULL if there are, 0 if
-- another transaction created it meanwhile.
CREATE OR REPLACE FUNCTION taskyard.semaphore_create(_key text, _most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _id integer;
BEGIN
    -- To count takes long where there are many: most of the time the largest number is enough.
    IF (SELECT max(s.id) FROM taskyard.semaphore s) >= _most
        AND (SELECT count(*) FROM taskyard.semaphore s) >= _most
    THEN
        RETURN NULL;
    END IF;
    INSERT INTO taskyard.semaphore AS s (key) VALUES (_key) ON CONFLICT (key) DO NOTHING
        RETURNING s.id INTO _id;
    IF _id IS NULL THEN
        RETURN 0;
    END IF;
    INSERT INTO taskyard.semaphore_state (semaphore_id, grant_seq)
        SELECT _id, g.last_value FROM taskyard.semaphore_grants g;
    RETURN _id;
END $$;

-- Changes the options of a semaphore, whose state the caller has locked, and what follows from that.
CREATE OR REPLACE FUNCTION taskyard.semaphore_change(_state taskyard.semaphore_state, _now bigint,
    _active integer, _try_release integer, _margin float8, _min_hold bigint, _cool_down bigint,
    _sets_revoking boolean, _max_revoking integer, _revoke_grace bigint, _force boolean,
    _sets_lease boolean, _lease bigint, _sets_ack boolean, _ack_timeout bigint, _shed boolean,
    _drop_expired boolean, OUT _deadline bigint, OUT _news boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _s taskyard.semaphore;
    _advanced record;
BEGIN
    UPDATE taskyard.semaphore s SET
        active = coalesce(_active, s.active), try_release = coalesce(_try_release, s.try_release),
        margin = coalesce(_margin, s.margin), min_hold = coalesce(_min_hold, s.min_hold),
        cool_down = coalesce(_cool_down, s.cool_down),
        max_revoking = CASE WHEN _sets_revoking THEN _max_revoking ELSE s.max_revoking END,
        revoke_grace = coalesce(_revoke_grace, s.revoke_grace), force = coalesce(_force, s.force),
        lease = CASE WHEN _sets_lease THEN _lease ELSE s.lease END,
        ack_timeout = CASE WHEN _sets_ack THEN _ack_timeout ELSE s.ack_timeout END,
        shed = coalesce(_shed, s.shed), drop_expired = coalesce(_drop_expired, s.drop_expired)
        WHERE s.id = _state.semaphore_id RETURNING s.* INTO _s;
    PERFORM taskyard.semaphore_set_recheck(_s.id, NULL);
    _advanced := taskyard.semaphore_advance(_s, _state, _state, _now);
    _deadline := _advanced._deadline;
    _news := _advanced._news;
END $$;

-- Creates a semaphore or changes it. The flags say which of the values that may be NULL are set. Codes: 0 done, 2 there are
-- too many, 3 the tail is longer than the capacity, which is then in deadline.
CREATE OR REPLACE FUNCTION taskyard.semaphore_configure(_key text, _only_new boolean, _now bigint, _most integer,
    _active integer, _try_release integer, _margin float8, _min_hold bigint, _cool_down bigint,
    _sets_revoking boolean, _max_revoking integer, _revoke_grace bigint, _force boolean,
    _sets_lease boolean, _lease bigint, _sets_ack boolean, _ack_timeout bigint, _shed boolean,
    _drop_expired boolean)
RETURNS TABLE (code smallint, deadline bigint, news boolean, key text, active integer,
    try_release integer, margin float8, min_hold bigint, cool_down bigint, max_revoking integer,
    revoke_grace bigint, force boolean, lease bigint, ack_timeout bigint, shed boolean,
    drop_expired boolean, waiting bigint, delayed bigint, acquired integer, revoking integer,
    events bigint, next_event bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    _s taskyard.semaphore;
    _state taskyard.semaphore_state;
    _known boolean;
    _id integer;
    _deadline bigint;
    _news boolean := false;
BEGIN
    _now := coalesce(_now, taskyard.clock());
    IF _only_new THEN
        -- An existing one is only shown. To count the waiting tasks takes long if there are many, and other callers must not
        -- wait for that: so without the lock.
        SELECT s.* INTO _s FROM taskyard.semaphore s WHERE s.key = _key;
        IF _s.id IS NOT NULL AND coalesce(_try_release, 0) <= coalesce(_active, _s.active) THEN
            RETURN QUERY SELECT * FROM taskyard.semaphore_show(_key);
            RETURN;
        END IF;
    END IF;
    SELECT t.* INTO _state FROM taskyard.semaphore_state t WHERE t.semaphore_id =
        (SELECT s.id FROM taskyard.semaphore s WHERE s.key = _key) FOR UPDATE;
    -- Read after the lock: it may have changed while this waited.
    SELECT s.* INTO _s FROM taskyard.semaphore s WHERE s.id = _state.semaphore_id;
    _known := _s.id IS NOT NULL;
    IF _try_release > coalesce(_active, _s.active, {{SEMAPHORE_ACTIVE_DEFAULT}}) THEN
        code := 3;
        deadline := coalesce(_active, _s.active, {{SEMAPHORE_ACTIVE_DEFAULT}});
        RETURN NEXT;
        RETURN;
    END IF;
    IF NOT _known THEN
        _id := taskyard.semaphore_create(_key, _most);
        IF _id IS NULL THEN
            code := 2;
            RETURN NEXT;
            RETURN;
        END IF;
        IF _id = 0 THEN
            -- Begin anew with the options that the other transaction set.
            RETURN QUERY SELECT * FROM taskyard.semaphore_configure(_key, _only_new, _now, _most,
                _active, _try_release, _margin, _min_hold, _cool_down, _sets_revoking, _max_revoking,
                _revoke_grace, _force, _sets_lease, _lease, _sets_ack, _ack_timeout, _shed, _drop_expired);
            RETURN;
        END IF;
        SELECT t.* INTO _state FROM taskyard.semaphore_state t WHERE t.semaphore_id = _id FOR UPDATE;
    END IF;
    IF NOT (_known AND _only_new) THEN
        SELECT d._deadline, d._news INTO _deadline, _news FROM taskyard.semaphore_change(_state, _now, _active,
            _try_release, _margin, _min_hold, _cool_down, _sets_revoking, _max_revoking, _revoke_grace, _force,
            _sets_lease, _lease, _sets_ack, _ack_timeout, _shed, _drop_expired) d;
    END IF;
    RETURN QUERY SELECT w.code, _deadline, _news, w.key, w.active, w.try_release, w.margin, w.min_hold, w.cool_down,
        w.max_revoking, w.revoke_grace, w.force, w.lease, w.ack_timeout, w.shed, w.drop_expired, w.waiting, w.delayed,
        w.acquired, w.revoking, w.events, w.next_event
        FROM taskyard.semaphore_show(_key) w;
END $$;
