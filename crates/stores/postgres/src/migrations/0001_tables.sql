-- The tables. Times are microseconds since the Unix epoch, lengths of time are microseconds; the
-- largest bigint is a moment that never comes. Priorities are 64 bits without a sign: they are kept
-- less 2^63, so that they sort as they should.

CREATE TABLE taskyard.tube (
    number          integer PRIMARY KEY,
    name            text COLLATE "C" NOT NULL UNIQUE,
    kind            text NOT NULL
                    CHECK (kind IN ('fifo', 'fifottl', 'limfifottl', 'utube', 'utubettl')),
    temporary       boolean NOT NULL,
    capacity        bigint,
    ttl             bigint,
    ttr             bigint,
    delay           bigint,
    pri             bigint NOT NULL,
    attempts_max    bigint,
    ttl_kills_taken boolean NOT NULL,
    paused          boolean NOT NULL,
    -- Where its task ids come from. A counter in this row would make every put wait for the other puts.
    ids             regclass NOT NULL,
    has_times       boolean NOT NULL
                    GENERATED ALWAYS AS (kind IN ('fifottl', 'limfifottl', 'utubettl')) STORED,
    has_subqueues   boolean NOT NULL
                    GENERATED ALWAYS AS (kind IN ('utube', 'utubettl')) STORED
);

CREATE SEQUENCE taskyard.tube_number AS integer;

-- Lease numbers, the fencing tokens: none is ever issued twice. Each connection takes some ahead.
CREATE SEQUENCE taskyard.lease CACHE 100;

-- A row is put once, updated by each delivery and deleted at its end. Payloads of up to 2 kB are in the
-- row, since a second table would cost a second row and index entry for every put; larger ones move
-- to the side table that PostgreSQL keeps for them and are not copied by updates. The free third of each
-- page lets the version that a take writes stay beside the one it replaces.
CREATE TABLE taskyard.task (
    tube            integer NOT NULL,
    id              bigint NOT NULL,
    -- 0 ready, 1 taken, 2 delayed, 3 buried, 4 buried because its attempts are used up, 5 ready but
    -- expired and passed over by a take, so that no other take meets it again.
    state           smallint NOT NULL CHECK (state BETWEEN 0 AND 5),
    pri             bigint NOT NULL,
    created         bigint NOT NULL,
    expires         bigint NOT NULL,
    ttr             bigint NOT NULL,
    -- When time alone next moves it: due, lease end or expiry by its state; NULL is never.
    timer           bigint,
    attempts        bigint NOT NULL DEFAULT 0,
    previous_start  bigint,
    lease           bigint,
    start           bigint,
    -- Whether the taker named the lease time itself.
    explicit        boolean,
    session         bytea,
    subqueue        text COLLATE "C",
    meta            bytea,
    payload         bytea NOT NULL,
    PRIMARY KEY (tube, id)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2
);
ALTER TABLE taskyard.task ALTER COLUMN payload SET STORAGE EXTERNAL;

-- No index of the taken ones: every take and ack would pay for what only listings use.
CREATE INDEX task_ready ON taskyard.task (tube, pri, id) WHERE state = 0;
CREATE INDEX task_buried ON taskyard.task (tube, pri, id) WHERE state IN (3, 4);
CREATE INDEX task_timer ON taskyard.task (tube, timer) WHERE timer IS NOT NULL;
CREATE INDEX task_session ON taskyard.task (session) WHERE session IS NOT NULL;
CREATE INDEX task_subqueue ON taskyard.task (tube, subqueue, state, pri, id)
    WHERE subqueue IS NOT NULL;

-- How many tasks are in each state, as changes that add up: every call adds a row, so that no row is updated by
-- every call, and ticks add them up. Expired tasks that a take passed over are counted apart.
CREATE TABLE taskyard.count (
    tube            integer NOT NULL,
    ready           bigint NOT NULL DEFAULT 0,
    passed          bigint NOT NULL DEFAULT 0,
    taken           bigint NOT NULL DEFAULT 0,
    delayed         bigint NOT NULL DEFAULT 0,
    buried          bigint NOT NULL DEFAULT 0
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX count_tube ON taskyard.count (tube);

-- One row for each sub-queue that has tasks. A change of a task of a sub-queue locks its row first.
-- The head is its first ready task while none runs, so that a take never looks at busy ones.
CREATE TABLE taskyard.subqueue (
    tube            integer NOT NULL,
    key             text COLLATE "C" NOT NULL,
    head_pri        bigint,
    head_id         bigint,
    PRIMARY KEY (tube, key)
) WITH (fillfactor = 70);
CREATE INDEX subqueue_head ON taskyard.subqueue (tube, head_pri, head_id)
    WHERE head_id IS NOT NULL;

-- Servers that are alive; the heartbeat is by this database's clock.
CREATE TABLE taskyard.server (
    id              bytea PRIMARY KEY,
    heartbeat       bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE taskyard.session (
    id              bytea PRIMARY KEY,
    -- When it ends, if no connection comes back.
    ends            bigint
) WITH (fillfactor = 70);
CREATE INDEX session_ends ON taskyard.session (ends) WHERE ends IS NOT NULL;

-- How many connections of a session are at which server.
CREATE TABLE taskyard.connection (
    session         bytea NOT NULL,
    server          bytea NOT NULL,
    count           bigint NOT NULL,
    PRIMARY KEY (session, server)
) WITH (fillfactor = 70);
CREATE INDEX connection_server ON taskyard.connection (server);

CREATE TABLE taskyard.setting (
    -- How long a session without connections keeps its tasks.
    session_ttr     bigint NOT NULL
);
INSERT INTO taskyard.setting VALUES (0);

-- What answers show of a task, and what became of one item of a batch. Item 0 is about the whole.
CREATE TYPE taskyard.outcome AS (
    item            integer,
    -- 0 done, 1 stale, 2 missing; of item 0: see status in the functions.
    outcome         smallint,
    -- What is to be counted: 1 ack, 2 release, 3 release that used up the attempts, 4 bury, 5 touch.
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
    -- 0 waits for a consumer, 1 running, 2 not due, 3 tube paused, 4 sub-queue busy, 5 buried,
    -- 6 attempts used up, 7 expired, 8 finished.
    reason          smallint,
    meta            bytea,
    payload         bytea
);

-- A tube as answers show it.
CREATE TYPE taskyard.tube_info AS (
    number          integer,
    name            text,
    kind            text,
    temporary       boolean,
    capacity        bigint,
    ttl             bigint,
    ttr             bigint,
    delay           bigint,
    pri             bigint,
    attempts_max    bigint,
    ttl_kills_taken boolean,
    paused          boolean,
    ready           bigint,
    taken           bigint,
    buried          bigint,
    delayed         bigint,
    takeable        bigint,
    next_wakeup     bigint
);
