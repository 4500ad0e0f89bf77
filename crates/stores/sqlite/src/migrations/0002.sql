-- Numbered and never edited: a change of the format is a new file.

-- One row, once there is a semaphore: how many rows the tables below have and sums over their keys, so that a
-- row that vanishes is noticed, and where the numbers of events go on.
CREATE TABLE semaphore_head (
  one         INTEGER PRIMARY KEY CHECK (one = 1),
  semaphores  INTEGER NOT NULL,
  tasks       INTEGER NOT NULL,
  task_keys   INTEGER NOT NULL,
  events      INTEGER NOT NULL,
  event_keys  INTEGER NOT NULL,
  next_event  INTEGER NOT NULL,
  sum         INTEGER NOT NULL
);

-- Times are microseconds; NULL is "none" or "never".
CREATE TABLE semaphore (
  number       INTEGER PRIMARY KEY,
  key          TEXT    NOT NULL,
  active       INTEGER NOT NULL,
  try_release  INTEGER NOT NULL,
  margin       REAL    NOT NULL,
  min_hold     INTEGER NOT NULL,
  cool_down    INTEGER NOT NULL,
  max_revoking INTEGER,
  revoke_grace INTEGER NOT NULL,
  force        INTEGER NOT NULL,
  lease        INTEGER,
  ack_timeout  INTEGER,
  shed         INTEGER NOT NULL,
  drop_expired INTEGER NOT NULL,
  grant_seq    INTEGER NOT NULL,
  recheck_at   INTEGER,
  sum          INTEGER NOT NULL
);

-- `seq` is the number of the arrival, which decides between equal priorities. `moment` is when a delayed task
-- stands in line again, or when a holder that was asked to release is asked again.
CREATE TABLE semaphore_task (
  seq         INTEGER PRIMARY KEY,
  semaphore   INTEGER NOT NULL,
  task_id     INTEGER NOT NULL,
  priority    REAL    NOT NULL,
  enqueued    INTEGER NOT NULL,
  status      TEXT    NOT NULL,
  grant_no    INTEGER,
  granted     INTEGER,
  lease_until INTEGER,
  ack_by      INTEGER,
  moment      INTEGER,
  pinned      INTEGER NOT NULL,
  sum         INTEGER NOT NULL
);

-- Events that are not acknowledged yet.
CREATE TABLE semaphore_event (
  id        INTEGER PRIMARY KEY,
  semaphore INTEGER NOT NULL,
  task_id   INTEGER NOT NULL,
  grant_no  INTEGER NOT NULL,
  kind      TEXT    NOT NULL,
  attempts  INTEGER NOT NULL,
  next_at   INTEGER NOT NULL,
  sum       INTEGER NOT NULL
);
