-- Bounds for the search for the best waiting task and the worst holder, see verbs/semaphore_heads.sql. NULL is
-- unknown.
ALTER TABLE taskyard.semaphore_state
    ADD COLUMN rest_rank float8,
    ADD COLUMN rest_seq bigint,
    ADD COLUMN ahead bigint NOT NULL DEFAULT 0,
    ADD COLUMN head_rank float8,
    ADD COLUMN head_seq bigint,
    ADD COLUMN tail_rank float8,
    ADD COLUMN tail_seq bigint;
