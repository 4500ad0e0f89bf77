-- Counters of operations.

-- Adds the counts of a server: _more has twelve numbers for each tube, in the order of the columns. Counts of dropped tubes
-- are ignored.
CREATE OR REPLACE FUNCTION taskyard.add_counters(
    _tubes integer[], _more bigint[], _dropped integer[])
RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM taskyard.counter c WHERE c.tube = ANY (_dropped);
    INSERT INTO taskyard.counter AS c
        SELECT t.number, _more[n.at + 1], _more[n.at + 2], _more[n.at + 3], _more[n.at + 4],
            _more[n.at + 5], _more[n.at + 6], _more[n.at + 7], _more[n.at + 8], _more[n.at + 9],
            _more[n.at + 10], _more[n.at + 11], _more[n.at + 12]
        FROM (SELECT i.tube, ((i.place - 1) * 12)::integer AS at
            FROM unnest(_tubes) WITH ORDINALITY AS i(tube, place)) n
        JOIN taskyard.tube t ON t.number = n.tube
        ORDER BY t.number
    ON CONFLICT (tube) DO UPDATE SET
        ack = c.ack + excluded.ack, bury = c.bury + excluded.bury,
        delete = c.delete + excluded.delete, kick = c.kick + excluded.kick,
        put = c.put + excluded.put, release = c.release + excluded.release,
        take = c.take + excluded.take, touch = c.touch + excluded.touch,
        ttl = c.ttl + excluded.ttl, ttr = c.ttr + excluded.ttr,
        delay = c.delay + excluded.delay, done = c.done + excluded.done;
$$;
