-- Numbered and never edited: a change of the format is a new file.

-- Nothing changes in here: from now on the newest batches may stand in files beside the database, and a version that
-- does not know of them must not open it.
