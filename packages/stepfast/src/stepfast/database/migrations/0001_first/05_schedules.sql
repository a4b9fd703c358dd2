-- Schedules. Exactly one of cron, every (microseconds) and once_at says when. next_at is empty when nothing more
-- is due: a one-off that fired, or a schedule that was removed although the code declares it.
CREATE TABLE IF NOT EXISTS stepfast_schedule (
    id {key} NOT NULL PRIMARY KEY,
    kind {label} NOT NULL,
    queue {key} NOT NULL,
    priority {priority} NOT NULL,
    payload {json:payload},
    cron VARCHAR(200),
    every {total},
    once_at {instant},
    tz VARCHAR(60) NOT NULL,
    missed {missed} NOT NULL,
    overlap {overlap} NOT NULL,
    tick_as {label},
    next_at {instant},
    last_at {instant},
    paused_at {instant},
    removed_at {instant},
    source VARCHAR(10) NOT NULL,
    declared {document},
    note VARCHAR(500),
    changed_at {instant} NOT NULL,
    revision BIGINT NOT NULL
) {table_options};

CREATE INDEX {if_not_exists} stepfast_schedule_next ON stepfast_schedule (next_at);
