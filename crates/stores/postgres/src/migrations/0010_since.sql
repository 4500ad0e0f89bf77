-- Since when a task is ready, where that is not since its put: since the end of its delay, since its last release, or
-- since a kick. No index has it, so that puts and takes cost the same.
ALTER TABLE taskyard.task ADD COLUMN since bigint;
ALTER TYPE taskyard.tube_info ADD ATTRIBUTE oldest_ready bigint;
