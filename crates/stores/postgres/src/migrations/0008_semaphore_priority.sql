-- How important a task is to the semaphore before its tube, where its put said so.
ALTER TABLE taskyard.task ADD COLUMN semaphore_priority float8;
