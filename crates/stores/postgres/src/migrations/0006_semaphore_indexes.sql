-- What semaphores look for without walking over everybody: who declined, and the events of one that are due.

CREATE INDEX semaphore_task_pinned ON taskyard.semaphore_task (semaphore_id) WHERE pinned;
CREATE INDEX semaphore_event_due ON taskyard.semaphore_event (semaphore_id, next_at, id);
