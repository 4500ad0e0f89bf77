-- Who gets into a semaphore, and who is asked to leave. Runs at the end of every call that changes one, under its lock.

-- Removes what was still to be said about a grant; whether its holder may have heard of it.
CREATE OR REPLACE FUNCTION taskyard.semaphore_forget(_id integer, _task bigint, _grant bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _told boolean := true;
    _kind text;
    _attempts integer;
BEGIN
    FOR _kind, _attempts IN
        DELETE FROM taskyard.semaphore_event e
        WHERE e.semaphore_id = _id AND e.task_id = _task AND e.grant_no = _grant
        RETURNING e.kind, e.attempts
    LOOP
        _told := _told AND (_kind <> 'acquired' OR _attempts > 0);
    END LOOP;
    RETURN _told;
END $$;

-- Locks several semaphores in the order of their numbers, so that nobody waits for each other in a circle.
CREATE OR REPLACE FUNCTION taskyard.semaphore_lock_all(_keys text[], _tubes text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM taskyard.semaphore_state t
        WHERE t.semaphore_id = ANY (ARRAY(
            SELECT s.id FROM taskyard.semaphore s WHERE s.key = ANY (_keys)
            UNION SELECT u.semaphore FROM taskyard.tube u WHERE u.name = ANY (_tubes)))
        ORDER BY t.semaphore_id FOR UPDATE;
END $$;

-- The same with the semaphores of events whose acknowledgement changes a grant.
CREATE OR REPLACE FUNCTION taskyard.semaphore_lock_all(_keys text[], _tubes text[], _events bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM taskyard.semaphore_state t
        WHERE t.semaphore_id = ANY (ARRAY(
            SELECT s.id FROM taskyard.semaphore s WHERE s.key = ANY (_keys)
            UNION SELECT u.semaphore FROM taskyard.tube u WHERE u.name = ANY (_tubes)
            UNION SELECT e.semaphore_id FROM unnest(_events) AS n(id)
                CROSS JOIN LATERAL (SELECT e.semaphore_id, e.kind FROM taskyard.semaphore_event e
                    WHERE e.id = n.id OFFSET 0) e
                JOIN taskyard.semaphore s ON s.id = e.semaphore_id
                WHERE e.kind = 'acquired' AND s.ack_timeout IS NOT NULL))
        ORDER BY t.semaphore_id FOR UPDATE;
END $$;

CREATE OR REPLACE FUNCTION taskyard.semaphore_lock_all(_keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM taskyard.semaphore_state t
        WHERE t.semaphore_id = ANY (ARRAY(SELECT s.id FROM taskyard.semaphore s WHERE s.key = ANY (_keys)))
        ORDER BY t.semaphore_id FOR UPDATE;
END $$;

-- Takes steps until none is left to take, or so many were taken that others should have their turn: then the next tick
-- goes on. Admit, take a request back, ask to release. Writes the state if it changed.
-- _deadline is the earliest moment that was set, _news whether there are new events.
DROP FUNCTION IF EXISTS taskyard.semaphore_settle(taskyard.semaphore, taskyard.semaphore_state, integer, integer,
    bigint);

-- _old is the state as it is written, _n the same with what the caller noted about who came to wait.
CREATE OR REPLACE FUNCTION taskyard.semaphore_settle(_s taskyard.semaphore, _old taskyard.semaphore_state,
    _n taskyard.semaphore_state, _acquired integer, _revoking integer, _now bigint, OUT _deadline bigint,
    OUT _news boolean)
-- Plans are made once, perhaps on an empty table: they must not come to read the line of another semaphore.
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    _grant bigint := _old.grant_seq;
    _tail integer := least(_s.try_release, _s.active);
    _limit integer := least(coalesce(_s.max_revoking, 16), least(_s.try_release, _s.active));
    -- With no capacity every holder is one too many; otherwise a tail of 0 means that none is ever asked.
    _shed_limit integer := CASE WHEN _s.shed AND (_s.try_release > 0 OR _s.active = 0)
        THEN coalesce(_s.max_revoking, 16) ELSE 0 END;
    _lease bigint := taskyard.later(_now, _s.lease);
    _ack bigint := taskyard.later(_now, _s.ack_timeout);
    -- How many steps may still be taken. A search behind as many who wait as were asked costs more.
    _left integer := 20000;
    _cost integer;
    _count integer;
    _gated bigint[];
    _excess integer;
    _for_waiter boolean;
    _h record;
    _w float8;
    _attempts integer;
    _recheck bigint;
    _again bigint;
    _from_rank float8;
    _from_seq bigint;
    _rank float8;
    _seq bigint;
BEGIN
    _news := false;
    LOOP
        IF _left <= 0 THEN
            _recheck := _now;
            EXIT;
        END IF;
        _recheck := NULL;
        -- The best who wait get the free places. Whether somebody waits is asked first: most releases find nobody,
        -- and to ask is much cheaper than to try.
        IF _acquired + _revoking < _s.active THEN
            _from_rank := taskyard.semaphore_from_rank(_n);
            _from_seq := taskyard.semaphore_from_seq(_n);
            SELECT t.rank, t.seq INTO _rank, _seq FROM taskyard.semaphore_task t
                WHERE t.semaphore_id = _s.id AND t.status = 'WAIT'
                    AND (t.rank, t.seq) >= (_from_rank, _from_seq)
                ORDER BY t.rank, t.seq LIMIT 1;
            _n := taskyard.semaphore_found(_n, _rank, _seq);
        END IF;
        IF _acquired + _revoking < _s.active AND _rank IS NOT NULL THEN
            IF _acquired = 0 THEN
                _n.tail_rank := '-infinity';
                _n.tail_seq := 0;
            END IF;
            WITH best AS MATERIALIZED (
                SELECT b.place, row_number() OVER () AS n FROM (
                    SELECT t.ctid AS place FROM taskyard.semaphore_task t
                    WHERE t.semaphore_id = _s.id AND t.status = 'WAIT' AND (t.rank, t.seq) >= (_rank, _seq)
                    ORDER BY t.rank, t.seq
                    LIMIT least(_s.active - _acquired - _revoking, _left)) b),
            granted AS (
                UPDATE taskyard.semaphore_task t
                SET status = 'ACQUIRED', grant_no = _grant + b.n, granted = _now,
                    -- Who works on a task of a tube has a lease there, which brings the task back: with one more
                    -- here the place would go to another while the work goes on.
                    lease_until = CASE WHEN t.task_id >= 0 THEN _lease END,
                    ack_by = CASE WHEN t.task_id >= 0 THEN _ack END, moment = NULL, pinned = false
                FROM best b WHERE t.ctid = b.place
                RETURNING t.task_id, t.grant_no, t.rank, t.seq),
            told AS (
                INSERT INTO taskyard.semaphore_event (semaphore_id, task_id, grant_no, kind, next_at)
                SELECT _s.id, g.task_id, g.grant_no, 'acquired', _now FROM granted g
                -- A tube sees for itself that its task was let in.
                WHERE g.task_id >= 0 ORDER BY g.grant_no)
            SELECT count(*), array_agg(g.task_id ORDER BY g.grant_no) FILTER (WHERE g.task_id < 0),
                (array_agg(g.rank ORDER BY g.grant_no DESC))[1], (array_agg(g.seq ORDER BY g.grant_no DESC))[1]
                INTO _count, _gated, _rank, _seq FROM granted g;
            _n := taskyard.semaphore_holds(taskyard.semaphore_popped(_n, _rank, _seq, _count), _rank, _seq);
            IF _gated IS NOT NULL THEN
                PERFORM taskyard.move_gated(_gated, true);
            END IF;
            IF _count > 0 THEN
                _acquired := _acquired + _count;
                _grant := _grant + _count;
                _left := _left - _count;
                IF _count > coalesce(cardinality(_gated), 0) THEN
                    _news := true;
                    _deadline := least(_deadline, _lease, _ack);
                END IF;
                CONTINUE WHEN _left <= 0;
            END IF;
        END IF;
        _cost := 1 + _revoking / 64;
        -- The best who was asked to release keeps its grant, when nobody better waits for it any more.
        IF _revoking > 0 THEN
            _excess := CASE WHEN _s.shed THEN greatest(_acquired + _revoking - _s.active, 0) ELSE 0 END;
            IF _revoking > _excess THEN
                SELECT t.task_id, t.priority, t.grant_no, t.rank, t.seq INTO _h FROM taskyard.semaphore_task t
                    WHERE t.semaphore_id = _s.id AND t.status = 'TRY_RELEASE'
                    ORDER BY t.rank, t.seq LIMIT 1;
                _from_rank := taskyard.semaphore_from_rank(_n);
                _from_seq := taskyard.semaphore_from_seq(_n);
                SELECT t.priority INTO _w FROM taskyard.semaphore_task t
                    WHERE t.semaphore_id = _s.id AND t.status = 'WAIT'
                        AND (t.rank, t.seq) >= (_from_rank, _from_seq)
                    ORDER BY t.rank, t.seq OFFSET _revoking - _excess - 1 LIMIT 1;
                IF _w IS NULL OR _w <= _h.priority THEN
                    UPDATE taskyard.semaphore_task t SET status = 'ACQUIRED', moment = NULL
                        WHERE t.semaphore_id = _s.id AND t.task_id = _h.task_id;
                    _n := taskyard.semaphore_holds(_n, _h.rank, _h.seq);
                    _acquired := _acquired + 1;
                    _revoking := _revoking - 1;
                    DELETE FROM taskyard.semaphore_event e
                        WHERE e.semaphore_id = _s.id AND e.task_id = _h.task_id
                            AND e.grant_no = _h.grant_no AND e.kind = 'try_release'
                        RETURNING e.attempts INTO _attempts;
                    -- Who never heard of the request need not hear that it is gone.
                    IF coalesce(_attempts, 1) > 0 THEN
                        INSERT INTO taskyard.semaphore_event (semaphore_id, task_id, grant_no, kind, next_at)
                            VALUES (_s.id, _h.task_id, _h.grant_no, 'keep', _now);
                        _news := true;
                    END IF;
                    _left := _left - _cost;
                    CONTINUE;
                END IF;
            END IF;
        END IF;
        IF _n.declines THEN
            _n := taskyard.semaphore_end_declines(_s, _n, _acquired + _revoking);
        END IF;
        -- The worst holder is asked to release: for somebody better who waits, one for each of those, or because
        -- the capacity was lowered.
        _for_waiter := _acquired + _revoking = _s.active AND _revoking < _limit;
        EXIT WHEN NOT _for_waiter AND NOT (_acquired > _s.active AND _revoking < _shed_limit);
        SELECT t.task_id, t.priority, t.grant_no, t.granted, t.rank, t.seq INTO _h FROM taskyard.semaphore_task t
            WHERE t.semaphore_id = _s.id AND t.status = 'ACQUIRED' AND NOT t.pinned AND (t.rank, t.seq)
                <= (coalesce(_n.tail_rank, 'infinity'), coalesce(_n.tail_seq, 0))
            ORDER BY t.rank DESC, t.seq DESC LIMIT 1;
        _n.tail_rank := coalesce(_h.rank, '-infinity');
        _n.tail_seq := coalesce(_h.seq, 0);
        EXIT WHEN _h.task_id IS NULL;
        IF _for_waiter THEN
            _from_rank := taskyard.semaphore_from_rank(_n);
            _from_seq := taskyard.semaphore_from_seq(_n);
            SELECT t.priority, t.rank, t.seq INTO _w, _rank, _seq FROM taskyard.semaphore_task t
                WHERE t.semaphore_id = _s.id AND t.status = 'WAIT'
                    AND (t.rank, t.seq) >= (_from_rank, _from_seq)
                ORDER BY t.rank, t.seq OFFSET _revoking LIMIT 1;
            IF _revoking = 0 THEN
                _n := taskyard.semaphore_found(_n, _rank, _seq);
            END IF;
            -- The sum of two numbers may be beyond all numbers, which is an error here: so asked first.
            EXIT WHEN _w IS NULL OR CASE WHEN _h.priority < 1.7976931348623157e308 - _s.margin
                THEN _w <= _h.priority + _s.margin ELSE true END;
        END IF;
        -- The best are never asked. Without declines the worst is not one of them: fewer were asked than may be.
        EXIT WHEN _n.declines AND _s.active > _tail
            AND NOT taskyard.semaphore_may_ask(_s.id, _acquired, _s.active - _tail, _h.rank, _h.seq);
        IF _for_waiter THEN
            IF taskyard.later(_h.granted, _s.min_hold) > _now THEN
                _recheck := taskyard.timer(taskyard.later(_h.granted, _s.min_hold));
                EXIT;
            END IF;
        END IF;
        -- One that nobody works on loses its grant without a word.
        IF _h.task_id < 0 AND NOT EXISTS (SELECT 1 FROM taskyard.task k
            WHERE k.tube = taskyard.gated_tube(_h.task_id) AND k.id = taskyard.gated_id(_h.task_id)
                AND k.state = 1)
        THEN
            PERFORM taskyard.move_gated(ARRAY[_h.task_id], false);
            UPDATE taskyard.semaphore_task t
                SET status = 'WAIT', grant_no = NULL, granted = NULL, lease_until = NULL, ack_by = NULL
                WHERE t.semaphore_id = _s.id AND t.task_id = _h.task_id;
            _n := taskyard.semaphore_came(_n, _h.rank, _h.seq, 1);
            _acquired := _acquired - 1;
            _left := _left - _cost;
            CONTINUE;
        END IF;
        -- So does one that nobody told of it.
        DELETE FROM taskyard.semaphore_event e
            WHERE e.semaphore_id = _s.id AND e.task_id = _h.task_id AND e.grant_no = _h.grant_no
                AND e.kind = 'acquired' AND e.attempts = 0;
        IF FOUND THEN
            UPDATE taskyard.semaphore_task t
                SET status = 'WAIT', grant_no = NULL, granted = NULL, lease_until = NULL, ack_by = NULL
                WHERE t.semaphore_id = _s.id AND t.task_id = _h.task_id;
            _n := taskyard.semaphore_came(_n, _h.rank, _h.seq, 1);
            _acquired := _acquired - 1;
            _left := _left - _cost;
            CONTINUE;
        END IF;
        _again := taskyard.later(_now, _s.revoke_grace);
        UPDATE taskyard.semaphore_task t SET status = 'TRY_RELEASE', moment = _again
            WHERE t.semaphore_id = _s.id AND t.task_id = _h.task_id;
        _acquired := _acquired - 1;
        _revoking := _revoking + 1;
        _left := _left - _cost;
        _deadline := least(_deadline, _again);
        DELETE FROM taskyard.semaphore_event e
            WHERE e.semaphore_id = _s.id AND e.task_id = _h.task_id AND e.grant_no = _h.grant_no
                AND e.kind = 'keep';
        -- Also to one that was not told yet that it may stay: the first request may be lost. But that one may have been
        -- heard as well, so this one counts as told: if it is taken back, `keep` must follow.
        INSERT INTO taskyard.semaphore_event (semaphore_id, task_id, grant_no, kind, attempts, next_at)
            VALUES (_s.id, _h.task_id, _h.grant_no, 'try_release', CASE WHEN FOUND THEN 1 ELSE 0 END, _now);
        _news := true;
    END LOOP;
    _n.acquired := _acquired;
    _n.revoking := _revoking;
    _n.grant_seq := _grant;
    IF _n IS DISTINCT FROM _old THEN
        UPDATE taskyard.semaphore_state t
            SET acquired = _acquired, revoking = _revoking, grant_seq = _grant, rest_rank = _n.rest_rank,
                rest_seq = _n.rest_seq, ahead = _n.ahead, head_rank = _n.head_rank, head_seq = _n.head_seq,
                tail_rank = _n.tail_rank, tail_seq = _n.tail_seq, declines = _n.declines
            WHERE t.semaphore_id = _s.id;
    END IF;
    IF _recheck IS NOT NULL THEN
        INSERT INTO taskyard.semaphore_recheck VALUES (_s.id, _recheck)
            ON CONFLICT (semaphore_id) DO UPDATE SET at = excluded.at;
        _deadline := least(_deadline, _recheck);
    ELSIF _s.min_hold > 0 THEN
        DELETE FROM taskyard.semaphore_recheck r WHERE r.semaphore_id = _s.id;
    END IF;
    _deadline := taskyard.timer(_deadline);
END $$;
