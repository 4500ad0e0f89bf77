-- The loop that a semaphore in a table is usually made with: a program checks each of them once a minute. Tables, columns and
-- steps as its description has them; nothing was added to make it slower.
DROP SCHEMA IF EXISTS taskyard_bench_poll CASCADE;
CREATE SCHEMA taskyard_bench_poll;
SET search_path = taskyard_bench_poll;

CREATE TABLE semaphore (
    id serial PRIMARY KEY,
    key text NOT NULL,
    active int NOT NULL DEFAULT 1000,
    try_release int NOT NULL DEFAULT 900
);
CREATE UNIQUE INDEX ix_semaphore ON semaphore (key);
CREATE TYPE semaphore_status AS ENUM ('WAIT', 'ACQUIRED', 'TRY_RELEASE');
CREATE TABLE semaphore_task (
    semaphore_id int NOT NULL REFERENCES semaphore (id),
    task_id bigint NOT NULL,
    priority double precision NOT NULL,
    status semaphore_status NOT NULL DEFAULT 'WAIT',
    enqueued timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (semaphore_id, task_id)
);
CREATE INDEX ix_semaphore_task_wait ON semaphore_task (semaphore_id, priority);
CREATE INDEX ix_semaphore_task_active ON semaphore_task (semaphore_id, priority)
    WHERE status IN ('ACQUIRED', 'TRY_RELEASE');
CREATE TABLE event (id bigserial PRIMARY KEY, kind text NOT NULL, semaphore_key text NOT NULL, task_id bigint NOT NULL);

-- One round over all semaphores; how many were let in.
CREATE FUNCTION round_over_all() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    _s taskyard_bench_poll.semaphore;
    _top bigint[];
    _running bigint[];
    _new bigint[];
    _admitted bigint := 0;
BEGIN
    FOR _s IN SELECT * FROM taskyard_bench_poll.semaphore LOOP
        _top := ARRAY(SELECT t.task_id FROM taskyard_bench_poll.semaphore_task t
            WHERE t.semaphore_id = _s.id ORDER BY t.priority DESC LIMIT _s.active);
        _running := ARRAY(SELECT t.task_id FROM taskyard_bench_poll.semaphore_task t
            WHERE t.semaphore_id = _s.id AND t.status IN ('ACQUIRED', 'TRY_RELEASE'));
        _new := ARRAY(SELECT n FROM unnest(_top) n EXCEPT SELECT r FROM unnest(_running) r);
        WITH let_in AS (
            UPDATE taskyard_bench_poll.semaphore_task t SET status = 'ACQUIRED'
            WHERE t.semaphore_id = _s.id
                AND t.task_id = ANY (_new[1:greatest(_s.active - cardinality(_running), 0)])
            RETURNING t.task_id)
        INSERT INTO taskyard_bench_poll.event (kind, semaphore_key, task_id)
            SELECT 'Acquired', _s.key, l.task_id FROM let_in l;
        GET DIAGNOSTICS _admitted = ROW_COUNT;
        WITH asked AS (
            UPDATE taskyard_bench_poll.semaphore_task t SET status = 'TRY_RELEASE'
            WHERE t.semaphore_id = _s.id AND t.task_id IN (
                SELECT w.task_id FROM taskyard_bench_poll.semaphore_task w
                WHERE w.semaphore_id = _s.id AND w.status = 'ACQUIRED' ORDER BY w.priority
                LIMIT least(_s.try_release, greatest(cardinality(_new) - _admitted, 0)))
            RETURNING t.task_id)
        INSERT INTO taskyard_bench_poll.event (kind, semaphore_key, task_id)
            SELECT 'TryRelease', _s.key, a.task_id FROM asked a;
    END LOOP;
    RETURN _admitted;
END $$;

INSERT INTO semaphore (key) SELECT 'semaphore ' || n FROM generate_series(1, 100) n;
INSERT INTO semaphore_task (semaphore_id, task_id, priority)
    SELECT s.id, n, n % 1000 FROM semaphore s, generate_series(1, 2000) n;
SELECT round_over_all();
DELETE FROM semaphore_task WHERE status = 'ACQUIRED' AND task_id % 100 = 0;
ANALYZE;
