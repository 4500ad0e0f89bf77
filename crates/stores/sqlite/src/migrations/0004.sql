-- Numbered and never edited: a change of the format is a new file.

-- The permanent number of the queue of a contract that a tube is.
ALTER TABLE tube ADD COLUMN queue_num INTEGER;
