-- Numbered and never edited: a change of the format is a new file.

-- The latest failures of a task, in the layout of the core; NULL for a task that never failed.
ALTER TABLE task ADD COLUMN failures BLOB;
