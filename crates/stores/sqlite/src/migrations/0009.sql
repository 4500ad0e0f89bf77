-- Numbered and never edited: a change of the format is a new file.

-- One row, once a semaphore was dropped: no new one gives a grant up to this number.
CREATE TABLE IF NOT EXISTS semaphore_floor (
  one    INTEGER PRIMARY KEY CHECK (one = 1),
  grants INTEGER NOT NULL
);
