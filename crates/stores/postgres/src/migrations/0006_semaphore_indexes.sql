-- Searches that must not read all tasks of a semaphore: holders that declined, and the due events of one semaphore.

CREATE INDEX semaphore_task_pinned ON taskyard.semaphore_task (semaphore_id) WHERE pinned;
CREATE INDEX semaphore_event_due ON taskyard.semaphore_event (semaphore_id, next_at, id);
