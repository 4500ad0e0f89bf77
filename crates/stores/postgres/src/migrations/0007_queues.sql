-- The permanent number of the queue of a contract that a tube is.
ALTER TABLE taskyard.tube ADD COLUMN queue_num bigint UNIQUE;
ALTER TYPE taskyard.tube_info ADD ATTRIBUTE queue_num bigint;
