-- Holders that declined to release. The state of a semaphore notes that there may be some (`declines`): who declines says
-- so, and who looks for them and finds none takes it back.

-- A decline stands as long as the request that it answered would: when no better task waits for the place, and it is not
-- one of too many, its holder may be asked again. Answers the state with what changed there.
CREATE OR REPLACE FUNCTION taskyard.semaphore_end_declines(_s taskyard.semaphore, _n taskyard.semaphore_state,
    _held integer)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    _from_rank float8 := taskyard.semaphore_from_rank(_n);
    _from_seq bigint := taskyard.semaphore_from_seq(_n);
    _best float8;
    _rank float8;
    _seq bigint;
BEGIN
    IF NOT (_s.shed AND _held > _s.active) THEN
        SELECT t.rank INTO _best FROM taskyard.semaphore_task t
            WHERE t.semaphore_id = _s.id AND t.status = 'WAIT' AND (t.rank, t.seq) >= (_from_rank, _from_seq)
            ORDER BY t.rank, t.seq LIMIT 1;
        WITH over AS (
            UPDATE taskyard.semaphore_task t SET pinned = false
            WHERE t.semaphore_id = _s.id AND t.pinned AND t.rank <= coalesce(_best, 'infinity')
            RETURNING t.rank, t.seq)
        SELECT o.rank, o.seq INTO _rank, _seq FROM over o ORDER BY o.rank DESC, o.seq DESC LIMIT 1;
        _n := taskyard.semaphore_holds(_n, _rank, _seq);
    END IF;
    _n.declines := EXISTS (SELECT 1 FROM taskyard.semaphore_task t WHERE t.semaphore_id = _s.id AND t.pinned);
    RETURN _n;
END $$;

-- Whether the worst holder that can be asked, which stands here, is outside of the best _protected of all holders, which
-- never are. Those that can be asked are better than the worst of them, and of the others some are.
CREATE OR REPLACE FUNCTION taskyard.semaphore_may_ask(_id integer, _acquired integer, _protected integer,
    _rank float8, _seq bigint)
RETURNS boolean LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    _pinned bigint := (SELECT count(*) FROM taskyard.semaphore_task t WHERE t.semaphore_id = _id AND t.pinned);
    _missing bigint := _protected + 1 - (_acquired - _pinned);
BEGIN
    IF _missing <= 0 THEN
        RETURN true;
    END IF;
    RETURN _missing <= (SELECT count(*) FROM (
        (SELECT 1 FROM taskyard.semaphore_task t
            WHERE t.semaphore_id = _id AND t.pinned AND (t.rank, t.seq) < (_rank, _seq)
            ORDER BY t.rank, t.seq LIMIT _missing)
        UNION ALL
        (SELECT 1 FROM taskyard.semaphore_task t
            WHERE t.semaphore_id = _id AND t.status = 'TRY_RELEASE' AND (t.rank, t.seq) < (_rank, _seq)
            ORDER BY t.rank, t.seq LIMIT _missing)) better);
END $$;
