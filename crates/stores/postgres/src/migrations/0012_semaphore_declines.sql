-- Whether holders may have declined to release: then, and only then, they are looked for. And in which order they are
-- better than others.
ALTER TABLE taskyard.semaphore_state ADD COLUMN declines boolean NOT NULL DEFAULT false;
UPDATE taskyard.semaphore_state t SET declines = true
    WHERE EXISTS (SELECT 1 FROM taskyard.semaphore_task k WHERE k.semaphore_id = t.semaphore_id AND k.pinned);
DROP INDEX taskyard.semaphore_task_pinned;
CREATE INDEX semaphore_task_pinned ON taskyard.semaphore_task (semaphore_id, rank, seq) WHERE pinned;

-- No new semaphore gives a grant up to this number: those of semaphores that were dropped may still be named.
CREATE SEQUENCE taskyard.semaphore_grants MINVALUE 0 START 0;
