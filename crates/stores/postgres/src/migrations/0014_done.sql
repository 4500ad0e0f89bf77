-- Done tasks that a tube keeps.

-- How long and how many; without the time none are kept.
ALTER TABLE taskyard.tube ADD COLUMN keep_done bigint, ADD COLUMN keep_done_max bigint NOT NULL DEFAULT 10000;
ALTER TYPE taskyard.tube_info ADD ATTRIBUTE keep_done bigint, ADD ATTRIBUTE keep_done_max bigint;

-- They have a table of their own, so that the tasks which can still be delivered are as cheap as before.
CREATE TABLE taskyard.done (
    tube            integer NOT NULL,
    id              bigint NOT NULL,
    ended           bigint NOT NULL,
    pri             bigint NOT NULL,
    created         bigint NOT NULL,
    expires         bigint NOT NULL,
    ttr             bigint NOT NULL,
    attempts        bigint NOT NULL,
    previous_start  bigint,
    subqueue        text COLLATE "C",
    meta            bytea,
    payload         bytea NOT NULL,
    failures        bytea,
    -- How it ended, in the form that all stores keep.
    finished        bytea NOT NULL,
    PRIMARY KEY (tube, id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2
);
ALTER TABLE taskyard.done ALTER COLUMN payload SET STORAGE EXTERNAL, ALTER COLUMN finished SET STORAGE EXTERNAL;
CREATE INDEX done_ended ON taskyard.done (tube, ended, id);

-- How many done tasks there are more or less. NULL in the rows of tubes that keep none, which are not larger for it.
ALTER TABLE taskyard.count ADD COLUMN kept bigint;

-- A row for each tube that keeps done tasks, or did and still has some: what ticks know about their removal.
CREATE TABLE taskyard.retention (
    tube            integer PRIMARY KEY,
    -- When the next one is over age, or earlier.
    due             bigint NOT NULL DEFAULT 0,
    -- When the first of them ended, when they were last searched from the beginning, and how long that took.
    oldest          bigint NOT NULL DEFAULT 0,
    searched        bigint NOT NULL DEFAULT 0,
    cost            bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- A task as a peek shows it: the columns of the type outcome, and others. State 7 is done.
CREATE TYPE taskyard.shown AS (
    item            integer,
    outcome         smallint,
    event           smallint,
    id              bigint,
    state           smallint,
    pri             bigint,
    created         bigint,
    expires         bigint,
    ttr             bigint,
    timer           bigint,
    attempts        bigint,
    previous_start  bigint,
    lease           bigint,
    start           bigint,
    session         bytea,
    subqueue        text,
    reason          smallint,
    meta            bytea,
    payload         bytea,
    semaphore_priority float8,
    -- Since when a taken task was ready.
    since           bigint,
    worker          text,
    failures        bytea,
    finished        bytea
);
