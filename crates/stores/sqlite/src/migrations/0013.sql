-- Numbered and never edited: a change of the format is a new file.

-- The retry policy of a tube, its rate limit and the bucket of that; a tube without policy and limit has no row.
-- Times are microseconds, factor and jitter thousandths. `level` counts in units of 1/`rate_per` token, at the moment
-- `level_at`; NULL is full.
CREATE TABLE tube_pace (
  number          INTEGER PRIMARY KEY,
  retry_delay     INTEGER,
  retry_factor    INTEGER,
  retry_delay_max INTEGER,
  retry_jitter    INTEGER,
  retry_lost      INTEGER,
  rate_count      INTEGER,
  rate_per        INTEGER,
  rate_burst      INTEGER,
  level           INTEGER,
  level_at        INTEGER,
  sum             INTEGER NOT NULL
);

-- Schedules. `data` has everything but the name, as fields of a tag, a length and the value.
CREATE TABLE schedule (
  number INTEGER PRIMARY KEY,
  name   TEXT    NOT NULL,
  data   BLOB    NOT NULL,
  sum    INTEGER NOT NULL
);
CREATE UNIQUE INDEX schedule_name ON schedule (name);

-- One row, once one of the tables above had a row: how many rows they have and sums over their keys, so that a row
-- that vanishes is noticed.
CREATE TABLE pace_head (
  one           INTEGER PRIMARY KEY CHECK (one = 1),
  tubes         INTEGER NOT NULL,
  tube_keys     INTEGER NOT NULL,
  schedules     INTEGER NOT NULL,
  schedule_keys INTEGER NOT NULL,
  sum           INTEGER NOT NULL
);

-- From now on `state` is the state plus 256 times the `attempts_max` of the task, if its put gave one.
DROP VIEW tasks;

-- For people who open the file.
CREATE VIEW tasks AS
  SELECT tube.name AS tube,
         task.key & 0x1FFFFFFFFFFFF AS id,
         CASE state & 255 WHEN 0 THEN 'ready' WHEN 1 THEN 'delayed' WHEN 2 THEN 'buried' WHEN 4 THEN 'delayed' WHEN 5 THEN 'done' ELSE 'dead letter' END AS state,
         task.pri,
         datetime((created + coalesce((SELECT wall_ahead FROM clock), 0)) / 1000000, 'unixepoch') AS created,
         attempts, nullif(state >> 8, 0) AS attempts_max, subqueue, length(data) AS bytes
  FROM task JOIN tube ON tube.number = task.key >> 49;
