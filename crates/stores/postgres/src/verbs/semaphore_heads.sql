-- Bounds for searches in a semaphore. A task that stops waiting leaves an entry in the index, and while a transaction with an
-- old snapshot is open (a backup, a long report) none of them can be removed: a search from the beginning would read all tasks
-- that were ever admitted. So the state of a semaphore has bounds:
--
-- All waiting tasks are at (rest_rank, rest_seq) or behind it, except for at most `ahead` that came later and are better; these
-- are at (head_rank, head_seq) or behind it. There are two bounds, because a single one would move to every better newcomer, and
-- the next search would read the dead entries again. All unpinned holders are at (tail_rank, tail_seq) or before it. A bound may
-- be too wide, never too narrow. Changes are made under the lock of the state, so the bounds are exact.

-- Where the search for waiting tasks begins. Two functions, because a function with two results is never inlined.
CREATE OR REPLACE FUNCTION taskyard.semaphore_from_rank(_n taskyard.semaphore_state) RETURNS float8
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(CASE WHEN (_n).ahead > 0 THEN (_n).head_rank ELSE (_n).rest_rank END, '-infinity'::float8)
$$;

CREATE OR REPLACE FUNCTION taskyard.semaphore_from_seq(_n taskyard.semaphore_state) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(CASE WHEN (_n).ahead > 0 THEN (_n).head_seq ELSE (_n).rest_seq END, 0::bigint)
$$;

-- The bounds after so many tasks began to wait, the best of them at this place.
CREATE OR REPLACE FUNCTION taskyard.semaphore_added(
    _n taskyard.semaphore_state, _rank float8, _seq bigint, _count bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF _rank IS NULL OR _n.rest_rank IS NULL OR (_rank, _seq) >= (_n.rest_rank, _n.rest_seq) THEN
        RETURN _n;
    END IF;
    IF _n.ahead > 16 AND (_rank, _seq) < (_n.head_rank, _n.head_seq) THEN
        -- So many that they become the rest.
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

-- The bounds after so many tasks before the rest stopped waiting.
CREATE OR REPLACE FUNCTION taskyard.semaphore_removed(_n taskyard.semaphore_state, _count bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    _n.ahead := greatest(_n.ahead - _count, 0);
    RETURN _n;
END $$;

-- The bounds after the best waiting task was found at this place; NULL is none.
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

-- The bounds after so many of the best stopped waiting, the last of them at this place.
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

-- The bounds with a holder at this place.
CREATE OR REPLACE FUNCTION taskyard.semaphore_holds(_n taskyard.semaphore_state, _rank float8, _seq bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF (_rank, _seq) > (_n.tail_rank, _n.tail_seq) THEN
        _n.tail_rank := _rank;
        _n.tail_seq := _seq;
    END IF;
    RETURN _n;
END $$;

-- The state after so many of the best waiting tasks got a grant, the last of them at this place.
CREATE OR REPLACE FUNCTION taskyard.semaphore_admitted(
    _n taskyard.semaphore_state, _rank float8, _seq bigint, _count integer)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF _n.acquired = 0 OR (_rank, _seq) > (_n.tail_rank, _n.tail_seq) THEN
        _n.tail_rank := coalesce(_rank, '-infinity');
        _n.tail_seq := coalesce(_seq, 0);
    END IF;
    _n.acquired := _n.acquired + _count;
    _n.grant_seq := _n.grant_seq + _count;
    RETURN taskyard.semaphore_popped(_n, _rank, _seq, _count);
END $$;

-- The state after the request to a holder at this place was taken back.
CREATE OR REPLACE FUNCTION taskyard.semaphore_kept(_n taskyard.semaphore_state, _rank float8, _seq bigint)
RETURNS taskyard.semaphore_state LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    _n.acquired := _n.acquired + 1;
    _n.revoking := _n.revoking - 1;
    RETURN taskyard.semaphore_holds(_n, _rank, _seq);
END $$;
