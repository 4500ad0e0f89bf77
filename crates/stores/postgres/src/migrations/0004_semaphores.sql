-- Priority semaphores. Times are microseconds, as in the other tables; NULL is none or never. Larger priorities go
-- first, and of equals the one with the smaller seq.

CREATE TYPE taskyard.semaphore_status AS ENUM ('WAIT', 'ACQUIRED', 'TRY_RELEASE', 'DELAYED');

-- What a semaphore does; rarely written.
CREATE TABLE taskyard.semaphore (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key          text COLLATE "C" NOT NULL UNIQUE,
    active       integer NOT NULL DEFAULT 1000 CHECK (active >= 0),
    try_release  integer NOT NULL DEFAULT 900 CHECK (try_release >= 0),
    margin       float8 NOT NULL DEFAULT 0 CHECK (margin >= 0 AND margin < 'infinity'),
    min_hold     bigint NOT NULL DEFAULT 0,
    cool_down    bigint NOT NULL DEFAULT 0,
    max_revoking integer CHECK (max_revoking >= 0),
    revoke_grace bigint NOT NULL DEFAULT 60000000 CHECK (revoke_grace > 0),
    force        boolean NOT NULL DEFAULT false,
    lease        bigint CHECK (lease > 0),
    ack_timeout  bigint CHECK (ack_timeout > 0),
    shed         boolean NOT NULL DEFAULT false,
    drop_expired boolean NOT NULL DEFAULT false
);

-- One narrow row for each, locked by every call that changes something. How many wait is not kept, so that a call that
-- only waits does not write it.
CREATE TABLE taskyard.semaphore_state (
    semaphore_id integer PRIMARY KEY,
    acquired     integer NOT NULL DEFAULT 0,
    revoking     integer NOT NULL DEFAULT 0,
    grant_seq    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 30, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- When to look again whether a holder that was too young can be asked to release. Beside the state, whose updates
-- must not touch an index.
CREATE TABLE taskyard.semaphore_recheck (
    semaphore_id integer PRIMARY KEY,
    at           bigint NOT NULL
);

CREATE INDEX ON taskyard.semaphore_recheck (at);

CREATE SEQUENCE taskyard.semaphore_seq;

-- Waiting tasks and holders of grants. A foreign key would lock the semaphore's row at every enqueue.
CREATE TABLE taskyard.semaphore_task (
    semaphore_id integer NOT NULL,
    task_id      bigint NOT NULL,
    priority     float8 NOT NULL CHECK (priority > '-infinity' AND priority < 'infinity'),
    rank         float8 NOT NULL GENERATED ALWAYS AS (-priority) STORED,
    seq          bigint NOT NULL,
    status       taskyard.semaphore_status NOT NULL DEFAULT 'WAIT',
    enqueued     bigint NOT NULL,
    grant_no     bigint,
    granted      bigint,
    lease_until  bigint,
    ack_by       bigint,
    -- When a delayed task waits again, or a holder that was asked to release is asked again.
    moment       bigint,
    pinned       boolean NOT NULL DEFAULT false,
    -- When time alone next changes something about it.
    timer        bigint GENERATED ALWAYS AS
                 (nullif(least(moment, lease_until, ack_by), 9223372036854775807)) STORED,
    PRIMARY KEY (semaphore_id, task_id)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.02
);

CREATE INDEX semaphore_task_wait ON taskyard.semaphore_task (semaphore_id, rank, seq)
    WHERE status = 'WAIT';
CREATE INDEX semaphore_task_acquired ON taskyard.semaphore_task (semaphore_id, rank, seq)
    WHERE status = 'ACQUIRED' AND NOT pinned;
CREATE INDEX semaphore_task_try_release ON taskyard.semaphore_task (semaphore_id, rank, seq)
    WHERE status = 'TRY_RELEASE';
CREATE INDEX semaphore_task_delayed ON taskyard.semaphore_task (semaphore_id)
    WHERE status = 'DELAYED';
CREATE INDEX semaphore_task_timer ON taskyard.semaphore_task (timer) WHERE timer IS NOT NULL;

-- Events that are not acknowledged yet. Those of one semaphore are written under its lock, so their numbers stand in the
-- order of their commits.
CREATE TABLE taskyard.semaphore_event (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    semaphore_id integer NOT NULL,
    task_id      bigint NOT NULL,
    grant_no     bigint NOT NULL,
    kind         text NOT NULL
                 CHECK (kind IN ('acquired', 'try_release', 'keep', 'revoked', 'expired')),
    attempts     integer NOT NULL DEFAULT 0,
    next_at      bigint NOT NULL
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.02
);

CREATE INDEX ON taskyard.semaphore_event (next_at, id);
CREATE INDEX ON taskyard.semaphore_event (semaphore_id, task_id, grant_no);
