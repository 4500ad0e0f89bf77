-- Numbered and never edited: a change of the format is a new file.

-- One row: what the whole store is. `batch` grows with every commit and is compared with the seal
-- file; `tubes` and `tasks` are the numbers of their rows and `task_keys` a sum over the keys of the
-- tasks, so that a row that vanishes is noticed.
CREATE TABLE store (
  one           INTEGER PRIMARY KEY CHECK (one = 1),
  batch         INTEGER NOT NULL,
  lease_ceiling INTEGER NOT NULL,
  tubes         INTEGER NOT NULL,
  tasks         INTEGER NOT NULL,
  task_keys     INTEGER NOT NULL,
  sum           INTEGER NOT NULL
);

-- Times are microseconds; NULL is "none" or "never".
CREATE TABLE tube (
  number          INTEGER PRIMARY KEY,
  name            TEXT    NOT NULL,
  kind            TEXT    NOT NULL,
  temporary       INTEGER NOT NULL,
  capacity        INTEGER,
  ttl             INTEGER,
  ttr             INTEGER,
  delay           INTEGER,
  pri             INTEGER NOT NULL,
  attempts_max    INTEGER,
  ttl_kills_taken INTEGER NOT NULL,
  paused          INTEGER NOT NULL,
  next_id         INTEGER NOT NULL,
  sum             INTEGER NOT NULL
);

-- `key` is tube number * 2^49 + task id, so that the tasks of a tube lie together in the order they
-- came. `sum` guards the columns before `data`, `data_sum` guards `meta` and `data`.
CREATE TABLE task (
  key            INTEGER PRIMARY KEY,
  state          INTEGER NOT NULL,
  due            INTEGER,
  pri            INTEGER NOT NULL,
  created        INTEGER NOT NULL,
  expires        INTEGER,
  ttr            INTEGER,
  attempts       INTEGER NOT NULL,
  previous_start INTEGER,
  subqueue       TEXT,
  sum            INTEGER NOT NULL,
  data_sum       INTEGER NOT NULL,
  meta           BLOB,
  data           BLOB    NOT NULL
);

-- For people who open the file.
CREATE VIEW tasks AS
  SELECT tube.name AS tube,
         task.key & 0x1FFFFFFFFFFFF AS id,
         CASE state WHEN 0 THEN 'ready' WHEN 1 THEN 'delayed' WHEN 2 THEN 'buried' ELSE 'dead letter' END AS state,
         task.pri, datetime(created / 1000000, 'unixepoch') AS created,
         attempts, subqueue, length(data) AS bytes
  FROM task JOIN tube ON tube.number = task.key >> 49;
