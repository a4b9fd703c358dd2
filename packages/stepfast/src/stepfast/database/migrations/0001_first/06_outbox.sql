-- Messages that are to leave the database: staged in the transaction of their cause, sent after its commit. A message is sent
-- at least once, under an id that never changes, and in the order of seq per destination.
--
-- PostgreSQL gets no index on seq alone: to find the head of a line it would walk along it, over everything that was
-- sent in a week. The other two databases cannot do without.
-- only: postgresql
CREATE TABLE IF NOT EXISTS stepfast_outbox (
    seq BIGINT GENERATED ALWAYS AS IDENTITY,
    id {key} NOT NULL PRIMARY KEY,
    channel VARCHAR(20) NOT NULL,
    destination {key} NOT NULL,
    address {document} NOT NULL,
    dedupe_key {key},
    state {message_state} NOT NULL DEFAULT 'waiting',
    attempts {counter} NOT NULL DEFAULT 0,
    created_at {instant} NOT NULL DEFAULT ({now}),
    since_at {instant} NOT NULL DEFAULT ({now}),
    due_at {instant} NOT NULL DEFAULT ({now}),
    ended_at {instant},
    last_error {document},
    job_id {key},
    trace VARCHAR(55),
    headers {document},
    body {document} NOT NULL
) {table_options};

-- only: sqlite, mariadb
CREATE TABLE IF NOT EXISTS stepfast_outbox (
    seq {sequence},
    id {key} NOT NULL,
    channel VARCHAR(20) NOT NULL,
    destination {key} NOT NULL,
    address {document} NOT NULL,
    dedupe_key {key},
    state {message_state} NOT NULL DEFAULT 'waiting',
    attempts {counter} NOT NULL DEFAULT 0,
    created_at {instant} NOT NULL DEFAULT ({now}),
    since_at {instant} NOT NULL DEFAULT ({now}),
    due_at {instant} NOT NULL DEFAULT ({now}),
    ended_at {instant},
    last_error {document},
    job_id {key},
    trace VARCHAR(55),
    headers {document},
    body {document} NOT NULL
) {table_options};

-- only: sqlite
CREATE UNIQUE INDEX IF NOT EXISTS stepfast_outbox_id ON stepfast_outbox (id);
-- only: mariadb
CREATE UNIQUE INDEX stepfast_outbox_id ON stepfast_outbox (id);

-- The same cause is staged once for a destination, for as long as its message is kept.
-- only: postgresql, sqlite
CREATE UNIQUE INDEX IF NOT EXISTS stepfast_outbox_dedupe ON stepfast_outbox (destination, dedupe_key) WHERE dedupe_key IS NOT NULL;
-- only: mariadb
CREATE UNIQUE INDEX stepfast_outbox_dedupe ON stepfast_outbox (destination, dedupe_key);

-- The head of each destination's line.
-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_outbox_waiting ON stepfast_outbox (destination, seq) WHERE state = 'waiting';
-- only: mariadb
CREATE INDEX stepfast_outbox_waiting ON stepfast_outbox (state, destination, seq);

-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_outbox_ended ON stepfast_outbox (state, ended_at) WHERE ended_at IS NOT NULL;
-- only: mariadb
CREATE INDEX stepfast_outbox_ended ON stepfast_outbox (state, ended_at);

CREATE INDEX {if_not_exists} stepfast_outbox_job ON stepfast_outbox (job_id);

-- The relay that sends to a destination leases it under a fence: so its messages keep their order, and a relay that was
-- replaced records nothing. A row is made when a relay first meets the destination, and pruned when it was not used for long.
CREATE TABLE IF NOT EXISTS stepfast_destination (
    id {key} NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL DEFAULT 0,
    leased_until {instant} NOT NULL DEFAULT 0
) {table_options};

CREATE INDEX {if_not_exists} stepfast_destination_idle ON stepfast_destination (leased_until);

-- Alerts, one row per cause. Raising one again only counts; it is sent at notify_at, which lies behind the quiet time that
-- followed the last sending. message_ids are the messages of that sending, one per place where alerts go.
CREATE TABLE IF NOT EXISTS stepfast_alert (
    id {label} NOT NULL PRIMARY KEY,
    severity VARCHAR(10) NOT NULL,
    title VARCHAR(200) NOT NULL,
    body {document} NOT NULL,
    raised {total} NOT NULL DEFAULT 0,
    untold {total} NOT NULL DEFAULT 0,
    first_at {instant} NOT NULL,
    last_at {instant} NOT NULL,
    quiet_for {total},
    quiet_until {instant} NOT NULL DEFAULT 0,
    notify_at {instant},
    notified_at {instant},
    message_ids {document}
) {table_options};

-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_alert_due ON stepfast_alert (notify_at) WHERE notify_at IS NOT NULL;
-- only: mariadb
CREATE INDEX stepfast_alert_due ON stepfast_alert (notify_at);

CREATE INDEX {if_not_exists} stepfast_alert_last ON stepfast_alert (last_at);

-- How far the dead letters have been looked at for alerts, and which of the last minutes were counted: a death may
-- be committed after a younger one.
CREATE TABLE IF NOT EXISTS stepfast_bookmark (
    id {key} NOT NULL PRIMARY KEY,
    at {instant} NOT NULL
) {table_options};

CREATE TABLE IF NOT EXISTS stepfast_death (
    id {key} NOT NULL,
    finished_at {instant} NOT NULL,
    PRIMARY KEY (id, finished_at)
) {table_options};

CREATE INDEX {if_not_exists} stepfast_death_old ON stepfast_death (finished_at);
