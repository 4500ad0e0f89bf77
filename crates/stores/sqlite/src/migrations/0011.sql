-- Numbered and never edited: a change of the format is a new file.

-- How a done task ended that its tube keeps, in the layout of the core; NULL for other tasks.
ALTER TABLE task ADD COLUMN finished BLOB;
-- How long a tube keeps done tasks, in microseconds, and how many; NULL for none and the default.
ALTER TABLE tube ADD COLUMN keep_done INTEGER;
ALTER TABLE tube ADD COLUMN keep_done_max INTEGER;

DROP VIEW tasks;

-- For people who open the file.
CREATE VIEW tasks AS
  SELECT tube.name AS tube,
         task.key & 0x1FFFFFFFFFFFF AS id,
         CASE state WHEN 0 THEN 'ready' WHEN 1 THEN 'delayed' WHEN 2 THEN 'buried' WHEN 4 THEN 'delayed' WHEN 5 THEN 'done' ELSE 'dead letter' END AS state,
         task.pri,
         datetime((created + coalesce((SELECT wall_ahead FROM clock), 0)) / 1000000, 'unixepoch') AS created,
         attempts, subqueue, length(data) AS bytes
  FROM task JOIN tube ON tube.number = task.key >> 49;
