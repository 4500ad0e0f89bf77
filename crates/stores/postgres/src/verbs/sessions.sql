-- Joins and leaves of sessions. The row with event 0 closes each answer with its status: 0 done, 2 the session is unknown; its
-- count is the next end of a session that was set.

CREATE OR REPLACE FUNCTION taskyard.join_session(
    _session bytea, _create boolean, _server bytea, _now bigint)
RETURNS TABLE (event integer, number integer, name text, count bigint, status smallint)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    _now := coalesce(_now, taskyard.clock());
    PERFORM taskyard.lock_gates_of(_session);
    PERFORM 1 FROM taskyard.session s WHERE s.id = _session FOR UPDATE;
    IF NOT taskyard.is_alive(_session, _now) THEN
        IF NOT _create THEN
            RETURN QUERY SELECT 0, NULL::integer, NULL::text, NULL::bigint, 2::smallint;
            RETURN;
        END IF;
        -- Its time was over, although no tick has ended it yet.
        RETURN QUERY SELECT g.event, g.number, g.name, g.count, 0::smallint
            FROM taskyard.end_session(_session, _now) g;
    END IF;
    DELETE FROM taskyard.connection c WHERE c.session = _session AND c.count <= 0;
    INSERT INTO taskyard.session AS s (id) VALUES (_session)
        ON CONFLICT (id) DO UPDATE SET ends = NULL WHERE s.ends IS NOT NULL;
    INSERT INTO taskyard.connection AS c (session, server, count) VALUES (_session, _server, 1)
        ON CONFLICT (session, server) DO UPDATE SET count = c.count + 1;
    RETURN QUERY SELECT 0, NULL::integer, NULL::text, NULL::bigint, 0::smallint;
END $$;

CREATE OR REPLACE FUNCTION taskyard.leave_session(_session bytea, _server bytea, _now bigint)
RETURNS TABLE (event integer, number integer, name text, count bigint, status smallint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _ttr bigint;
    _ends bigint;
BEGIN
    _now := coalesce(_now, taskyard.clock());
    PERFORM taskyard.lock_gates_of(_session);
    PERFORM 1 FROM taskyard.session s WHERE s.id = _session FOR UPDATE;
    IF NOT taskyard.is_alive(_session, _now) THEN
        RETURN QUERY SELECT 0, NULL::integer, NULL::text, NULL::bigint, 2::smallint;
        RETURN;
    END IF;
    UPDATE taskyard.connection c SET count = c.count - 1
        WHERE c.session = _session AND c.server = _server AND c.count > 0;
    DELETE FROM taskyard.connection c WHERE c.session = _session AND c.count <= 0;
    IF NOT EXISTS (SELECT 1 FROM taskyard.connection c WHERE c.session = _session) THEN
        SELECT s.session_ttr INTO _ttr FROM taskyard.setting s;
        IF _ttr = 0 THEN
            RETURN QUERY SELECT g.event, g.number, g.name, g.count, 0::smallint
                FROM taskyard.end_session(_session, _now) g;
        ELSE
            _ends := taskyard.later(_now, _ttr);
            UPDATE taskyard.session s SET ends = _ends WHERE s.id = _session;
        END IF;
    END IF;
    RETURN QUERY SELECT 0, NULL::integer, NULL::text, taskyard.timer(_ends), 0::smallint;
END $$;

CREATE OR REPLACE FUNCTION taskyard.configure_sessions(_ttr bigint) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE taskyard.setting SET session_ttr = _ttr
$$;
