-- Making, changing and showing semaphores.

DROP FUNCTION IF EXISTS taskyard.semaphore_show(text);
DROP FUNCTION IF EXISTS taskyard.semaphore_configure(text, boolean, bigint, integer, integer, integer, float8,
    bigint, bigint, boolean, integer, bigint, boolean, boolean, bigint, boolean, bigint, boolean, boolean);

-- One semaphore or all, by key. How many wait is counted, so this is for people and pages.
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

-- Makes a semaphore or changes it. The flags say which of the values that may be NULL are meant. Codes: 0 done, 2 there
-- are too many, 3 the tail is longer than the capacity, which deadline then is.
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
        -- One that is there is only shown. To count who waits takes the longer the more do, and the others must not wait
        -- for that: so without the lock.
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
    IF _try_release > coalesce(_active, _s.active, 1000) THEN
        code := 3;
        deadline := coalesce(_active, _s.active, 1000);
        RETURN NEXT;
        RETURN;
    END IF;
    IF NOT _known THEN
        -- To count takes long where there are many: most of the time the largest number says enough.
        IF (SELECT max(s.id) FROM taskyard.semaphore s) >= _most AND (SELECT count(*) FROM taskyard.semaphore s) >= _most THEN
            code := 2;
            RETURN NEXT;
            RETURN;
        END IF;
        INSERT INTO taskyard.semaphore AS s (key) VALUES (_key) ON CONFLICT (key) DO NOTHING
            RETURNING s.id INTO _id;
        IF _id IS NULL THEN
            -- Another made it meanwhile: begin anew with what it is like.
            RETURN QUERY SELECT * FROM taskyard.semaphore_configure(_key, _only_new, _now, _most,
                _active, _try_release, _margin, _min_hold, _cool_down, _sets_revoking, _max_revoking,
                _revoke_grace, _force, _sets_lease, _lease, _sets_ack, _ack_timeout, _shed, _drop_expired);
            RETURN;
        END IF;
        INSERT INTO taskyard.semaphore_state (semaphore_id, grant_seq)
            SELECT _id, g.last_value FROM taskyard.semaphore_grants g;
        SELECT t.* INTO _state FROM taskyard.semaphore_state t WHERE t.semaphore_id =
            (SELECT s.id FROM taskyard.semaphore s WHERE s.key = _key) FOR UPDATE;
        -- Read after the lock: it may have changed while this waited.
        SELECT s.* INTO _s FROM taskyard.semaphore s WHERE s.id = _state.semaphore_id;
    END IF;
    IF NOT (_known AND _only_new) THEN
        UPDATE taskyard.semaphore s SET
            active = coalesce(_active, s.active), try_release = coalesce(_try_release, s.try_release),
            margin = coalesce(_margin, s.margin), min_hold = coalesce(_min_hold, s.min_hold),
            cool_down = coalesce(_cool_down, s.cool_down),
            max_revoking = CASE WHEN _sets_revoking THEN _max_revoking ELSE s.max_revoking END,
            revoke_grace = coalesce(_revoke_grace, s.revoke_grace), force = coalesce(_force, s.force),
            lease = CASE WHEN _sets_lease THEN _lease ELSE s.lease END,
            ack_timeout = CASE WHEN _sets_ack THEN _ack_timeout ELSE s.ack_timeout END,
            shed = coalesce(_shed, s.shed), drop_expired = coalesce(_drop_expired, s.drop_expired)
            WHERE s.id = _s.id RETURNING s.* INTO _s;
        DELETE FROM taskyard.semaphore_recheck r WHERE r.semaphore_id = _s.id;
        SELECT d._deadline, d._news INTO _deadline, _news FROM taskyard.semaphore_settle(_s, _state, _state, _state.acquired,
            _state.revoking, _now) d;
    END IF;
    RETURN QUERY SELECT w.code, _deadline, _news, w.key, w.active, w.try_release,
        w.margin, w.min_hold, w.cool_down, w.max_revoking, w.revoke_grace, w.force, w.lease,
        w.ack_timeout, w.shed, w.drop_expired, w.waiting, w.delayed, w.acquired, w.revoking, w.events,
        w.next_event
        FROM taskyard.semaphore_show(_key) w;
END $$;
