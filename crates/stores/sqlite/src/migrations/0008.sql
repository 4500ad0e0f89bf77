-- Numbered and never edited: a change of the format is a new file.

-- Moments are times of the engine, which go on evenly when the wall clock is set. One row, once that has happened: how
-- far wall time is ahead of them, in microseconds. A task of state 4 waits for a moment of wall time; its `due` and
-- `expires` are wall time.
CREATE TABLE clock (
  one        INTEGER PRIMARY KEY CHECK (one = 1),
  wall_ahead INTEGER NOT NULL,
  sum        INTEGER NOT NULL
);

DROP VIEW tasks;

-- For people who open the file.
CREATE VIEW tasks AS
  SELECT tube.name AS tube,
         task.key & 0x1FFFFFFFFFFFF AS id,
         CASE state WHEN 0 THEN 'ready' WHEN 1 THEN 'delayed' WHEN 2 THEN 'buried' WHEN 4 THEN 'delayed' ELSE 'dead letter' END AS state,
         task.pri,
         datetime((created + coalesce((SELECT wall_ahead FROM clock), 0)) / 1000000, 'unixepoch') AS created,
         attempts, subqueue, length(data) AS bytes
  FROM task JOIN tube ON tube.number = task.key >> 49;
