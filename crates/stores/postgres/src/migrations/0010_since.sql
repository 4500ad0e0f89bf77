-- Since when a task could be taken, where that is not since its put: since the end of its delay, since it was last given
-- back, or since a kick. No index has it, so that who puts and takes pays nothing for it.
ALTER TABLE taskyard.task ADD COLUMN since bigint;
ALTER TYPE taskyard.tube_info ADD ATTRIBUTE oldest_ready bigint;
