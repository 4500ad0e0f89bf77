-- Taken tasks are read by listings, by the release of all of them, and at every start of a first server: none of
-- them may read the whole backlog for it. Timers and taken tasks have separate indexes, so that a take still makes
-- one entry and not two.
DROP INDEX taskyard.task_timer;
CREATE INDEX task_timer ON taskyard.task (tube, timer) WHERE timer IS NOT NULL AND state <> 1;
CREATE INDEX task_taken ON taskyard.task (tube, timer) WHERE state = 1;

-- A take makes a second entry beside the first; a leaf that has no room for it would be split.
ALTER INDEX taskyard.task_pkey SET (fillfactor = 50);
