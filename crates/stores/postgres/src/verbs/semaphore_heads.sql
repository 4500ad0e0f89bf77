-- Where searches in a semaphore begin. Whoever leaves a line leaves an entry in its index, and while somebody holds an old
-- snapshot (a backup, a long report) none of them can be removed: a search from the beginning would walk over all who
-- were ever let in. So the state of a semaphore notes where the living begin:
--
-- All who wait stand at (rest_rank, rest_seq) or behind it, but for at most `ahead` who came later and are better; these
-- stand at (head_rank, head_seq) or behind it. Two bounds, because one alone would fall to every better newcomer, and the
-- search after it would walk over the dead once more. All unpinned holders stand at (tail_rank, tail_seq) or before it.
-- A bound may be too careful, never too bold. Who changes a line holds its state's lock, so what was noted is so.

-- Where the search for who waits begins. Two functions, because a function with two results is never inlined.
CREATE OR REPLACE FUNCTION taskyard.semaphore_from_rank(_n taskyard.semaphore_state) RETURNS float8
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(CASE WHEN (_n).ahead > 0 THEN (_n).head_rank ELSE (_n).rest_rank END, '-infinity'::float8)
$$;

CREATE OR REPLACE FUNCTION taskyard.semaphore_from_seq(_n taskyard.semaphore_state) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(CASE WHEN (_n).ahead > 0 THEN (_n).head_seq ELSE (_n).rest_seq END, 0::bigint)
$$;

-- So many came to wait, the best of them here.
CREATE OR REPLACE FUNCTION taskyard.semaphore_came(
    _n taskyard.semaphore_state, _rank float8, _seq bigint, _count bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF _rank IS NULL OR _n.rest_rank IS NULL OR (_rank, _seq) >= (_n.rest_rank, _n.rest_seq) THEN
        RETURN _n;
    END IF;
    IF _n.ahead > 16 AND (_rank, _seq) < (_n.head_rank, _n.head_seq) THEN
        -- So many are not late comers any more, they are the line.
        _n.rest_rank := _n.head_rank;
        _n.rest_seq := _n.head_seq;
        _n.ahead := 0;
    END IF;
    IF _n.ahead = 0 OR (_rank, _seq) < (_n.head_rank, _n.head_seq) THEN
        _n.head_rank := _rank;
        _n.head_seq := _seq;
    END IF;
    _n.ahead := _n.ahead + _count;
    RETURN _n;
END $$;

-- So many who stood before the rest left the line.
CREATE OR REPLACE FUNCTION taskyard.semaphore_left(_n taskyard.semaphore_state, _count bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    _n.ahead := greatest(_n.ahead - _count, 0);
    RETURN _n;
END $$;

-- The best who waits was found here; NULL is nobody.
CREATE OR REPLACE FUNCTION taskyard.semaphore_found(_n taskyard.semaphore_state, _rank float8, _seq bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF _rank IS NOT NULL AND _n.ahead > 0 AND _n.rest_rank < 'infinity'
        AND (_rank, _seq) < (_n.rest_rank, _n.rest_seq)
    THEN
        _n.head_rank := _rank;
        _n.head_seq := _seq;
        RETURN _n;
    END IF;
    _n.ahead := 0;
    _n.head_rank := NULL;
    _n.head_seq := NULL;
    _n.rest_rank := coalesce(_rank, 'infinity');
    _n.rest_seq := coalesce(_seq, 0);
    RETURN _n;
END $$;

-- So many of the best do not wait any more, the last of them here.
CREATE OR REPLACE FUNCTION taskyard.semaphore_popped(
    _n taskyard.semaphore_state, _rank float8, _seq bigint, _count bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    _n := taskyard.semaphore_found(_n, _rank, _seq);
    IF _n.ahead > _count THEN
        _n.ahead := _n.ahead - _count;
    ELSE
        _n.ahead := 0;
        _n.head_rank := NULL;
        _n.head_seq := NULL;
    END IF;
    RETURN _n;
END $$;

-- Somebody holds a grant here.
CREATE OR REPLACE FUNCTION taskyard.semaphore_holds(_n taskyard.semaphore_state, _rank float8, _seq bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF (_rank, _seq) > (_n.tail_rank, _n.tail_seq) THEN
        _n.tail_rank := _rank;
        _n.tail_seq := _seq;
    END IF;
    RETURN _n;
END $$;
