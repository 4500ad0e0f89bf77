-- Registers servers and detects dead ones.

DROP FUNCTION IF EXISTS taskyard.restart();

-- Restores the state that follows a stop of all servers: taken tasks are released, temporary tubes are emptied, sessions are
-- deleted.
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
        PERFORM taskyard.release_deliveries(_tubes, _ids, _leases, 5, NULL, NULL, _now);
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
            PERFORM taskyard.update_gate(_t, _ids, _now);
        END IF;
    END LOOP;
    DELETE FROM taskyard.task t USING taskyard.tube u WHERE u.number = t.tube AND u.temporary;
    DELETE FROM taskyard.subqueue s USING taskyard.tube u WHERE u.number = s.tube AND u.temporary;
    DELETE FROM taskyard.done d USING taskyard.tube u WHERE u.number = d.tube AND u.temporary;
    DELETE FROM taskyard.key k USING taskyard.tube u WHERE u.number = k.tube AND u.temporary;
    DELETE FROM taskyard.ended_keys e USING taskyard.tube u WHERE u.number = e.tube AND u.temporary;
    DELETE FROM taskyard.count c USING taskyard.tube u WHERE u.number = c.tube AND u.temporary;
END $$;

-- Deletes the connections of all sessions but _kept to this server. A session without another connection ends with the next
-- tick, or when its time has passed.
CREATE OR REPLACE FUNCTION taskyard.disconnect_sessions(_server bytea, _kept bytea[], _now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- A join at another server holds the session's row: so it is locked first, and the decision is a later statement.
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

-- Deletes a server and its connections.
CREATE OR REPLACE FUNCTION taskyard.delete_server(_server bytea, _now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM taskyard.disconnect_sessions(_server, '{}', _now);
    DELETE FROM taskyard.server v WHERE v.id = _server;
END $$;

-- The moment after which a live server must have sent a heartbeat. No server is declared dead before this database has received
-- heartbeats for _patience: not after a restart, nor after crash recovery or the promotion of a replica, which empty an unlogged
-- table. Heartbeats from before may be by another clock.
CREATE OR REPLACE FUNCTION taskyard.heartbeat_limit(_clock bigint, _patience bigint) RETURNS bigint
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

-- Without a heartbeat of any server for _patience this database stood still or was unreachable: all have that time to return, as
-- after a restart. To be called before a heartbeat is registered.
CREATE OR REPLACE FUNCTION taskyard.note_standstill(_clock bigint, _patience bigint) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE taskyard.incarnation SET began = _clock
        WHERE NOT EXISTS (SELECT 1 FROM taskyard.server v WHERE v.heartbeat > _clock - _patience);
$$;

DROP FUNCTION IF EXISTS taskyard.heartbeat(bytea, bigint, bigint);

-- Registers a heartbeat and deletes servers without one for _patience. Returns how many other servers are alive, how many were
-- deleted, and whether this server had been declared dead itself. A server that missed heartbeats itself does not declare others
-- dead, and a deleted one has missed the last two heartbeats of this server: otherwise the database may have been unreachable. A
-- session that ends with it gets a row of no connections at the server '', until it has a connection again.
CREATE FUNCTION taskyard.heartbeat(
    _server bytea, _patience bigint, _now bigint,
    OUT others bigint, OUT lost bigint, OUT forgotten boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _clock bigint := taskyard.clock();
    _limit bigint;
    _before bigint;
    _previous bigint;
    _dead bytea;
    _sessions bytea[];
BEGIN
    PERFORM pg_advisory_xact_lock(1952543592);
    PERFORM taskyard.note_standstill(_clock, _patience);
    _limit := taskyard.heartbeat_limit(_clock, _patience);
    lost := 0;
    SELECT v.heartbeat, v.previous INTO _before, _previous FROM taskyard.server v WHERE v.id = _server;
    forgotten := NOT FOUND;
    INSERT INTO taskyard.server AS v (id, heartbeat) VALUES (_server, _clock)
        ON CONFLICT (id) DO UPDATE SET heartbeat = excluded.heartbeat, previous = v.heartbeat;
    IF _before > _clock - _patience THEN
        FOR _dead IN SELECT v.id FROM taskyard.server v
            WHERE v.heartbeat < least(_limit, coalesce(_previous, -9223372036854775808))
        LOOP
            SELECT array_agg(c.session) INTO _sessions FROM taskyard.connection c WHERE c.server = _dead;
            PERFORM taskyard.delete_server(_dead, coalesce(_now, _clock));
            INSERT INTO taskyard.connection (session, server, count)
                SELECT s.id, '', 0 FROM taskyard.session s
                WHERE s.id = ANY (_sessions) AND s.ends IS NOT NULL
                ON CONFLICT (session, server) DO NOTHING;
            lost := lost + 1;
        END LOOP;
    END IF;
    SELECT count(*) INTO others FROM taskyard.server v WHERE v.id <> _server;
END $$;

-- Registers a server at its start. If no other server is alive, restores the state that follows a stop of all.
CREATE OR REPLACE FUNCTION taskyard.begin_server(_server bytea, _patience bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _clock bigint := taskyard.clock();
    _limit bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(1952543592);
    _limit := taskyard.heartbeat_limit(_clock, _patience);
    IF NOT EXISTS (SELECT 1 FROM taskyard.server v WHERE v.heartbeat >= _limit) THEN
        DELETE FROM taskyard.server;
        PERFORM taskyard.restart(NULL);
    END IF;
    INSERT INTO taskyard.server (id, heartbeat) VALUES (_server, _clock);
END $$;

-- Deletes a server at its regular end.
CREATE OR REPLACE FUNCTION taskyard.end_server(_server bytea, _patience bigint, _now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _clock bigint := taskyard.clock();
    _limit bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(1952543592);
    PERFORM taskyard.delete_server(_server, coalesce(_now, _clock));
    _limit := taskyard.heartbeat_limit(_clock, _patience);
    IF NOT EXISTS (SELECT 1 FROM taskyard.server v WHERE v.heartbeat >= _limit) THEN
        PERFORM taskyard.restart(coalesce(_now, _clock));
    END IF;
END $$;
