-- Numbered and never edited: a change of the format is a new file.

-- How important a task is to the semaphore before its tube, where its put said so.
ALTER TABLE task ADD COLUMN semaphore_priority REAL;
