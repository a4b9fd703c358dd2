-- Schedules. Exactly one of cron, every (microseconds) and once_at says when. next_at is empty when nothing more
-- is due: a one-off that fired, or a schedule that was removed although the code declares it.
CREATE TABLE IF NOT EXISTS stepfast_schedule (
    id {key} NOT NULL PRIMARY KEY,
    kind {label} NOT NULL,
    queue {key} NOT NULL,
    priority INTEGER NOT NULL,
    payload {json:payload},
    cron VARCHAR(200),
    every BIGINT,
    once_at BIGINT,
    tz VARCHAR(60) NOT NULL,
    missed VARCHAR(10) NOT NULL,
    overlap VARCHAR(10) NOT NULL,
    tick_as {label},
    next_at BIGINT,
    last_at BIGINT,
    paused_at BIGINT,
    removed_at BIGINT,
    source VARCHAR(10) NOT NULL,
    declared {document},
    note VARCHAR(500),
    changed_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
) {table_options};

CREATE INDEX {if_not_exists} stepfast_schedule_next ON stepfast_schedule (next_at);
