-- Unique keys, retry policies, rate limits and schedules.

-- The key of a task, for how long it stays held after the end of the task, and the task's own number of attempts. No index has them.
ALTER TABLE taskyard.task
    ADD COLUMN key text COLLATE "C", ADD COLUMN unique_for bigint, ADD COLUMN attempts_max bigint;
ALTER TABLE taskyard.done
    ADD COLUMN key text COLLATE "C", ADD COLUMN unique_for bigint, ADD COLUMN attempts_max bigint;
CREATE INDEX done_key ON taskyard.done (tube, key, id) WHERE key IS NOT NULL;
ALTER TYPE taskyard.shown ADD ATTRIBUTE key text, ADD ATTRIBUTE attempts_max bigint;

-- The holder of each key. A table of its own, so that tasks without a key cost the same, and a key can outlive its task.
CREATE TABLE taskyard.key (
    tube            integer NOT NULL,
    key             text COLLATE "C" NOT NULL,
    id              bigint NOT NULL,
    -- NULL while the task exists; then the moment from which the key is free.
    until           bigint,
    PRIMARY KEY (tube, key)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX key_until ON taskyard.key (tube, until) WHERE until IS NOT NULL;

-- How many keys of ended tasks there are more or less. NULL in the rows of tubes without any.
ALTER TABLE taskyard.count ADD COLUMN ended bigint;

-- A task that has ended, and its key.
CREATE TYPE taskyard.held_key AS (
    id              bigint,
    key             text,
    unique_for      bigint,
    ended           bigint
);

-- The retry policy of a tube, if it has a delay, and its rate limit, if it has a count. Factor and jitter are thousandths.
ALTER TABLE taskyard.tube
    ADD COLUMN retry_delay bigint, ADD COLUMN retry_factor bigint, ADD COLUMN retry_delay_max bigint,
    ADD COLUMN retry_jitter bigint, ADD COLUMN retry_lost boolean,
    ADD COLUMN rate_count bigint, ADD COLUMN rate_per bigint, ADD COLUMN rate_burst bigint;
ALTER TYPE taskyard.tube_info
    ADD ATTRIBUTE retry_delay bigint, ADD ATTRIBUTE retry_factor bigint, ADD ATTRIBUTE retry_delay_max bigint,
    ADD ATTRIBUTE retry_jitter bigint, ADD ATTRIBUTE retry_lost boolean,
    ADD ATTRIBUTE rate_count bigint, ADD ATTRIBUTE rate_per bigint, ADD ATTRIBUTE rate_burst bigint;

-- The token buckets of rate limits: the level at a moment, in units of 1/rate_per token. One that was never used is full, at the moment 0.
CREATE TABLE taskyard.bucket (
    tube            integer PRIMARY KEY,
    level           bigint NOT NULL,
    at              bigint NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- Schedules. The columns from payload to replaces are the task to put; the other times are those of the core.
CREATE TABLE taskyard.schedule (
    name            text COLLATE "C" PRIMARY KEY,
    tube            text COLLATE "C" NOT NULL,
    timing          text NOT NULL,
    catch_up        smallint NOT NULL CHECK (catch_up BETWEEN 0 AND 2),
    overlap         smallint NOT NULL CHECK (overlap BETWEEN 0 AND 1),
    until           bigint,
    paused          boolean NOT NULL,
    next            bigint,
    last            bigint,
    fired           bigint NOT NULL,
    skipped         bigint NOT NULL,
    payload         bytea NOT NULL,
    meta            bytea,
    pri             bigint,
    ttl             bigint,
    ttr             bigint,
    delay           bigint,
    at              bigint,
    subqueue        text COLLATE "C",
    semaphore_priority float8,
    attempts_max    bigint,
    key             text COLLATE "C",
    unique_for      bigint,
    replaces        boolean
);
CREATE INDEX schedule_due ON taskyard.schedule (next, name) WHERE NOT paused;
