-- Tubes with a semaphore: their tasks are ready only while they hold a grant.

ALTER TABLE taskyard.tube ADD COLUMN semaphore integer;

-- State 6 waits for the semaphore of its tube, and its time to live runs. It is shown as delayed. Not validated, as
-- no row can have it yet.
ALTER TABLE taskyard.task DROP CONSTRAINT task_state_check;
ALTER TABLE taskyard.task ADD CONSTRAINT task_state_check CHECK (state BETWEEN 0 AND 6) NOT VALID;

ALTER TYPE taskyard.tube_info ADD ATTRIBUTE semaphore text;
