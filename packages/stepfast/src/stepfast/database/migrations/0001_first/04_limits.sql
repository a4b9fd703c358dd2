-- Limits that hold across all workers. A rate keeps its theoretical arrival time (GCRA); a concurrency limit
-- keeps a row per slot taken. `due_at` says when to look whether held jobs may go on; NULL: none is held.

CREATE TABLE IF NOT EXISTS stepfast_limit (
    id {label} NOT NULL PRIMARY KEY,
    arrival_at {instant} NOT NULL DEFAULT 0,
    gap {total} NOT NULL DEFAULT 0,
    tolerance {total} NOT NULL DEFAULT 0,
    slots {counter} NOT NULL DEFAULT 0,
    due_at {instant}
) {table_options};

-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_limit_due ON stepfast_limit (due_at) WHERE due_at IS NOT NULL;
-- only: mariadb
CREATE INDEX stepfast_limit_due ON stepfast_limit (due_at);

-- A slot is taken by a step, under its fence: when the fence has moved on, the slot is free, even if its worker died.
CREATE TABLE IF NOT EXISTS stepfast_slot (
    job_id {key} NOT NULL,
    limit_id {label} NOT NULL,
    fence BIGINT NOT NULL,
    PRIMARY KEY (job_id, limit_id)
) {table_options};

CREATE INDEX {if_not_exists} stepfast_slot_limit ON stepfast_slot (limit_id);
