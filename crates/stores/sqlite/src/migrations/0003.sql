-- Numbered and never edited: a change of the format is a new file.

-- The key of the semaphore before a tube.
ALTER TABLE tube ADD COLUMN semaphore TEXT;
