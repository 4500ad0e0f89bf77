-- The name of the worker that has a taken task, and the latest failures of a task, in the form that all stores keep. A take sets the
-- name and nothing clears it, so it is valid in taken tasks only. No index has them.
ALTER TABLE taskyard.task ADD COLUMN worker text COLLATE "C", ADD COLUMN failures bytea;
