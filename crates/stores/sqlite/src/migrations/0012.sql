-- Numbered and never edited: a change of the format is a new file.

-- The unique keys of tasks, beside the tasks: a key may outlive its task, and is read without the payload. `key` is
-- that of the task. `unique_for` is for how long the key stays held after the end, NULL if the task has no row any
-- more. `until` is the moment up to which an ended task holds it, NULL if it does not.
CREATE TABLE unique_key (
  key        INTEGER PRIMARY KEY,
  name       TEXT    NOT NULL,
  unique_for INTEGER,
  until      INTEGER,
  sum        INTEGER NOT NULL
);

-- One row, once there was a key: how many rows the table above has and a sum over their keys, so that a row that
-- vanishes is noticed.
CREATE TABLE unique_key_head (
  one       INTEGER PRIMARY KEY CHECK (one = 1),
  keys      INTEGER NOT NULL,
  task_keys INTEGER NOT NULL,
  sum       INTEGER NOT NULL
);
