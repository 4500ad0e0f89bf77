-- Holders that declined to release. The state of a semaphore notes that there may be some (`declines`): a decline sets it, and
-- a search that finds none clears it.

-- Ends declines. A decline lasts as long as the request that it answered would: when no better task waits for the place, and
-- the holders are not too many, the holder may be asked again. Returns the state after that.
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

-- Whether the worst holder that can be asked, which is at this place, is not one of the best _protected holders, which are
-- never asked. The other holders that can be asked are better; of those that cannot, the better ones are counted.
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
