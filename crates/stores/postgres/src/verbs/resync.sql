-- Repairs the rows of a server after a lost answer.

-- A batch whose answer was lost may have been done, and a server that missed heartbeats may have been declared dead: then it sends
-- how many connections of which sessions it has, and the rows are replaced by that. A task that a session connected to this server
-- alone holds with a lease above _lease was taken by a batch whose answer was lost: it is released without counting as an attempt.
-- Only the sessions in _unsure can have such tasks. Answers what happened to tasks of sessions that have ended.
CREATE OR REPLACE FUNCTION taskyard.resync_server(
    _server bytea, _sessions bytea[], _counts bigint[], _unsure bytea[], _lease bigint, _now bigint)
RETURNS TABLE (event integer, number integer, name text, count bigint, status smallint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    _session bytea;
    _count bigint;
    _tube text;
    _ids bigint[];
    _leases bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(1952543592);
    _now := coalesce(_now, taskyard.clock());
    PERFORM taskyard.note_standstill(taskyard.clock(), {{HEARTBEAT_TIMEOUT}});
    INSERT INTO taskyard.server (id, heartbeat) VALUES (_server, taskyard.clock())
        ON CONFLICT (id) DO UPDATE SET heartbeat = excluded.heartbeat;
    PERFORM taskyard.disconnect_sessions(_server, _sessions, _now);
    FOR _session, _count IN
        SELECT k.id, k.count FROM unnest(_sessions, _counts) AS k(id, count) ORDER BY k.id
    LOOP
        PERFORM taskyard.lock_gates_of(_session);
        PERFORM 1 FROM taskyard.session s WHERE s.id = _session FOR UPDATE;
        IF NOT taskyard.is_alive(_session, _now) THEN
            -- It ended meanwhile. It continues without the tasks that it held.
            RETURN QUERY SELECT g.event, g.number, g.name, g.count, 0::smallint
                FROM taskyard.end_session(_session, _now) g;
        END IF;
        DELETE FROM taskyard.connection c WHERE c.session = _session AND c.count <= 0;
        INSERT INTO taskyard.session AS s (id) VALUES (_session)
            ON CONFLICT (id) DO UPDATE SET ends = NULL WHERE s.ends IS NOT NULL;
        INSERT INTO taskyard.connection (session, server, count) VALUES (_session, _server, _count)
            ON CONFLICT (session, server) DO UPDATE SET count = excluded.count;
    END LOOP;
    FOR _tube, _ids, _leases IN
        SELECT u.name, array_agg(t.id ORDER BY t.id), array_agg(t.lease ORDER BY t.id)
        FROM taskyard.task t JOIN taskyard.tube u ON u.number = t.tube
        WHERE t.session = ANY (_unsure) AND t.lease > _lease AND NOT EXISTS (
            SELECT 1 FROM taskyard.connection c
            WHERE c.session = t.session AND c.server <> _server)
        GROUP BY u.name ORDER BY u.name
    LOOP
        PERFORM taskyard.finish_tasks(_tube, _now, _ids, NULL, _leases, NULL,
            array_fill(1::smallint, ARRAY[cardinality(_ids)]),
            array_fill(0::bigint, ARRAY[cardinality(_ids)]),
            array_fill(false, ARRAY[cardinality(_ids)]), false, 0, NULL);
    END LOOP;
END $$;

-- For servers of earlier versions, which do not count these tasks.
CREATE OR REPLACE FUNCTION taskyard.settle_server(
    _server bytea, _sessions bytea[], _counts bigint[], _unsure bytea[], _lease bigint, _now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM * FROM taskyard.resync_server(_server, _sessions, _counts, _unsure, _lease, _now);
END $$;
