-- Which servers are alive.

DROP FUNCTION IF EXISTS taskyard.restart();

-- What a stop of all servers and a new start do: taken tasks are given back, temporary tubes are
-- empty, sessions are gone.
CREATE OR REPLACE FUNCTION taskyard.restart(_now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _tubes integer[];
    _ids bigint[];
    _leases bigint[];
    _t taskyard.tube;
BEGIN
    SELECT array_agg(t.tube), array_agg(t.id), array_agg(t.lease) INTO _tubes, _ids, _leases
        FROM taskyard.task t WHERE t.state = 1;
    IF _ids IS NOT NULL THEN
        PERFORM taskyard.give_back(_tubes, _ids, _leases, 5, NULL, _now);
    END IF;
    DELETE FROM taskyard.counter;
    DELETE FROM taskyard.connection;
    DELETE FROM taskyard.session;
    UPDATE taskyard.setting SET session_ttr = 0 WHERE session_ttr <> 0;
    FOR _t IN SELECT * FROM taskyard.tube u WHERE u.temporary AND u.semaphore IS NOT NULL
        ORDER BY u.semaphore, u.number
    LOOP
        WITH gone AS (DELETE FROM taskyard.task t WHERE t.tube = _t.number RETURNING t.id)
        SELECT array_agg(g.id) INTO _ids FROM gone g;
        IF _ids IS NOT NULL THEN
            PERFORM taskyard.regate(_t, _ids, _now);
        END IF;
    END LOOP;
    DELETE FROM taskyard.task t USING taskyard.tube u WHERE u.number = t.tube AND u.temporary;
    DELETE FROM taskyard.subqueue s USING taskyard.tube u WHERE u.number = s.tube AND u.temporary;
    DELETE FROM taskyard.count c USING taskyard.tube u WHERE u.number = c.tube AND u.temporary;
END $$;

-- Ends the part that this server had in all sessions but _kept. A session that is nowhere else connected
-- ends with the next tick, or when its time has passed.
CREATE OR REPLACE FUNCTION taskyard.part_sessions(_server bytea, _kept bytea[], _now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- Who joins elsewhere holds the session's row: locked, and decided in a later statement.
    PERFORM 1 FROM taskyard.session s WHERE s.id IN (
            SELECT c.session FROM taskyard.connection c
            WHERE c.server = _server AND c.session <> ALL (_kept))
        ORDER BY s.id FOR UPDATE;
    WITH lost AS (
        DELETE FROM taskyard.connection c
        WHERE c.server = _server AND c.session <> ALL (_kept) RETURNING c.session)
    UPDATE taskyard.session s
        SET ends = taskyard.later(_now, (SELECT g.session_ttr FROM taskyard.setting g))
        FROM lost
        WHERE s.id = lost.session AND s.ends IS NULL AND NOT EXISTS (
            SELECT 1 FROM taskyard.connection c
            WHERE c.session = lost.session AND c.server <> _server);
END $$;

-- Forgets a server and its part in sessions.
CREATE OR REPLACE FUNCTION taskyard.forget_server(_server bytea, _now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM taskyard.part_sessions(_server, '{}', _now);
    DELETE FROM taskyard.server v WHERE v.id = _server;
END $$;

-- When a server that lives must have been heard after. No server is judged before this database has heard servers for _patience: not
-- after a restart, nor after crash recovery or the promotion of a replica, which leave no row in a table that is not logged. The heartbeats that
-- are there then may be by another clock.
CREATE OR REPLACE FUNCTION taskyard.heard_after(_clock bigint, _patience bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _began bigint := (SELECT max(i.began) FROM taskyard.incarnation i);
BEGIN
    IF _began IS NULL THEN
        INSERT INTO taskyard.incarnation VALUES (_clock);
        UPDATE taskyard.server SET heartbeat = _clock WHERE heartbeat > _clock;
        _began := _clock;
    END IF;
    _began := greatest(_began, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint);
    RETURN CASE WHEN _began > _clock - _patience THEN -9223372036854775808 ELSE _clock - _patience END;
END $$;

DROP FUNCTION IF EXISTS taskyard.heartbeat(bytea, bigint, bigint);

-- A server says that it lives, and looks after those that have not said so for _patience: it answers
-- how many other servers live, how many are lost, and whether it was taken for dead itself. A server that was away
-- itself does not judge others, and a lost one has missed both of its last two heartbeats: perhaps it was the database that was
-- away.
CREATE FUNCTION taskyard.heartbeat(
    _server bytea, _patience bigint, _now bigint,
    OUT others bigint, OUT lost bigint, OUT forgotten boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _clock bigint := taskyard.clock();
    _heard_after bigint;
    _before bigint;
    _previous bigint;
    _dead bytea;
BEGIN
    PERFORM pg_advisory_xact_lock(1952543592);
    _heard_after := taskyard.heard_after(_clock, _patience);
    lost := 0;
    SELECT v.heartbeat, v.previous INTO _before, _previous FROM taskyard.server v WHERE v.id = _server;
    forgotten := NOT FOUND;
    INSERT INTO taskyard.server AS v (id, heartbeat) VALUES (_server, _clock)
        ON CONFLICT (id) DO UPDATE SET heartbeat = excluded.heartbeat, previous = v.heartbeat;
    IF _before > _clock - _patience THEN
        FOR _dead IN SELECT v.id FROM taskyard.server v
            WHERE v.heartbeat < least(_heard_after, coalesce(_previous, -9223372036854775808))
        LOOP
            PERFORM taskyard.forget_server(_dead, coalesce(_now, _clock));
            lost := lost + 1;
        END LOOP;
    END IF;
    SELECT count(*) INTO others FROM taskyard.server v WHERE v.id <> _server;
END $$;

-- A server begins. When no other lives, what the last ones left behind is put in order.
CREATE OR REPLACE FUNCTION taskyard.begin_server(_server bytea, _patience bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _clock bigint := taskyard.clock();
    _heard_after bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(1952543592);
    _heard_after := taskyard.heard_after(_clock, _patience);
    IF NOT EXISTS (SELECT 1 FROM taskyard.server v WHERE v.heartbeat >= _heard_after) THEN
        DELETE FROM taskyard.server;
        PERFORM taskyard.restart(NULL);
    END IF;
    INSERT INTO taskyard.server (id, heartbeat) VALUES (_server, _clock);
END $$;

-- A server ends in good order.
CREATE OR REPLACE FUNCTION taskyard.end_server(_server bytea, _patience bigint, _now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _clock bigint := taskyard.clock();
    _heard_after bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(1952543592);
    PERFORM taskyard.forget_server(_server, coalesce(_now, _clock));
    _heard_after := taskyard.heard_after(_clock, _patience);
    IF NOT EXISTS (SELECT 1 FROM taskyard.server v WHERE v.heartbeat >= _heard_after) THEN
        PERFORM taskyard.restart(coalesce(_now, _clock));
    END IF;
END $$;
