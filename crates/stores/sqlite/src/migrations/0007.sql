-- Numbered and never edited: a change of the format is a new file.

-- Nothing changes in here: from now on the due moment of a ready task is since when it waits, if not since its put, and
-- a version that does not know of that must not open it.
