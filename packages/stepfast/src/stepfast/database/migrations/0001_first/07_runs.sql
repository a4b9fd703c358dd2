-- Runs: a feed is read in partitions, page by page, into raw rows; these are consolidated into the target; then the
-- watermark moves. Windows, watermarks and observations are instants of the source's clock, everything else of ours.

CREATE TABLE IF NOT EXISTS stepfast_feed (
    id {label} NOT NULL PRIMARY KEY,
    watermark {instant},
    version BIGINT NOT NULL DEFAULT 0,
    last_run {key},
    skew {skew} NOT NULL DEFAULT 0,
    last_took {total} NOT NULL DEFAULT 0,
    troubles {counter} NOT NULL DEFAULT 0,
    paused_until {instant},
    pause_reason VARCHAR(500),
    export_to {document},
    troubled_at {instant},
    probe {key},
    updated_at {instant} NOT NULL DEFAULT ({now})
) {table_options};

-- `active_feed` is the feed while the run is active: its unique index allows one active run per feed.
CREATE TABLE IF NOT EXISTS stepfast_run (
    id {key} NOT NULL PRIMARY KEY,
    feed {label} NOT NULL,
    kind {run_kind} NOT NULL,
    scope VARCHAR(10) NOT NULL DEFAULT 'complete',
    state {run_state} NOT NULL,
    stalled_in {run_state},
    active_feed {label},
    window_from {instant},
    window_to {instant} NOT NULL,
    epoch {counter} NOT NULL DEFAULT 0,
    partitions {counter} NOT NULL DEFAULT 0,
    completed {counter} NOT NULL DEFAULT 0,
    failed {counter} NOT NULL DEFAULT 0,
    unverified {counter} NOT NULL DEFAULT 0,
    estimate {total} NOT NULL DEFAULT 0,
    baseline {total},
    requests {total} NOT NULL DEFAULT 0,
    seen {total} NOT NULL DEFAULT 0,
    rejected {total} NOT NULL DEFAULT 0,
    applied {total} NOT NULL DEFAULT 0,
    quarantined {total} NOT NULL DEFAULT 0,
    gone {total} NOT NULL DEFAULT 0,
    differences {total} NOT NULL DEFAULT 0,
    most_rows {total},
    priority {priority} NOT NULL DEFAULT 0,
    rounds {counter} NOT NULL DEFAULT 0,
    shards {counter} NOT NULL DEFAULT 0,
    forced {flag} NOT NULL DEFAULT 0,
    mapper_version {label},
    watermark_before {instant},
    watermark_after {instant},
    started_at {instant} NOT NULL DEFAULT ({now}),
    updated_at {instant} NOT NULL DEFAULT ({now}),
    troubled_at {instant},
    planned_at {instant},
    fetched_at {instant},
    applied_at {instant},
    completed_at {instant},
    ended_at {instant},
    job_id {key},
    frontier {document},
    reason {document},
    trace VARCHAR(55)
) {table_options};

-- only: postgresql, sqlite
CREATE UNIQUE INDEX IF NOT EXISTS stepfast_run_active ON stepfast_run (active_feed) WHERE active_feed IS NOT NULL;
-- only: mariadb
CREATE UNIQUE INDEX stepfast_run_active ON stepfast_run (active_feed);
CREATE INDEX {if_not_exists} stepfast_run_of_feed ON stepfast_run (feed, started_at);
CREATE INDEX {if_not_exists} stepfast_run_ended ON stepfast_run (ended_at);

-- A partition exists before anything can be lost. `seq` counts its committed requests, `epoch` its restarts. One that
-- reads a debt has the window of the debt, every other one that of its run.
CREATE TABLE IF NOT EXISTS stepfast_partition (
    id {key} NOT NULL PRIMARY KEY,
    run_id {key} NOT NULL,
    number {counter} NOT NULL,
    name {label} NOT NULL,
    parent {key},
    span {document} NOT NULL,
    window_from {instant},
    window_to {instant} NOT NULL,
    debt_id BIGINT,
    estimate {total},
    state {partition_state} NOT NULL DEFAULT 'ready',
    epoch {counter} NOT NULL DEFAULT 0,
    seq INTEGER NOT NULL DEFAULT 0,
    paging {document},
    frontier {document},
    next_offset {total} NOT NULL DEFAULT 0,
    seen {total} NOT NULL DEFAULT 0,
    rejected {total} NOT NULL DEFAULT 0,
    requests {total} NOT NULL DEFAULT 0,
    counted {total},
    job_id {key},
    worker_id VARCHAR(100),
    last_error {document},
    created_at {instant} NOT NULL DEFAULT ({now}),
    started_at {instant},
    updated_at {instant} NOT NULL DEFAULT ({now}),
    troubled_at {instant},
    ended_at {instant}
) {table_options};

CREATE UNIQUE INDEX {if_not_exists} stepfast_partition_number ON stepfast_partition (run_id, number);
CREATE INDEX {if_not_exists} stepfast_partition_of_run ON stepfast_partition (run_id, state);
CREATE INDEX {if_not_exists} stepfast_partition_open ON stepfast_partition (state, updated_at);

-- The ledger: what every request asked and got.
CREATE TABLE IF NOT EXISTS stepfast_page (
    partition_id {key} NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    pass INTEGER NOT NULL,
    request_offset BIGINT,
    got INTEGER NOT NULL,
    fresh INTEGER NOT NULL,
    rejected INTEGER NOT NULL,
    milliseconds INTEGER NOT NULL,
    decision VARCHAR(40) NOT NULL,
    worker_id VARCHAR(100) NOT NULL,
    fence BIGINT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (partition_id, epoch, seq)
) {table_options};

-- Which items a partition has seen: anchors of its pages, and the proof that it is complete. Dropped with the run's end.
CREATE TABLE IF NOT EXISTS stepfast_seen (
    partition_id {key} NOT NULL,
    item_id {label} NOT NULL,
    pass INTEGER NOT NULL,
    PRIMARY KEY (partition_id, item_id)
) {table_options};

-- The newest observation of every item. `pending`: 1 until it is consolidated, 2 if it was put into quarantine.
CREATE TABLE IF NOT EXISTS stepfast_raw (
    feed {label} NOT NULL,
    item_id {label} NOT NULL,
    observed_at {instant} NOT NULL,
    run_id {key} NOT NULL,
    content_hash VARCHAR(64) NOT NULL,
    applied_hash VARCHAR(64),
    applied_at {instant},
    pending INTEGER NOT NULL DEFAULT 1 CHECK (pending IN (0, 1, 2)),
    strikes {counter} NOT NULL DEFAULT 0,
    gone_at {instant},
    struck_by {key},
    payload {document} NOT NULL,
    PRIMARY KEY (feed, item_id)
) {with_limits} {table_options};

-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_raw_pending ON stepfast_raw (feed, item_id) WHERE pending = 1;
-- only: mariadb
CREATE INDEX stepfast_raw_pending ON stepfast_raw (feed, pending, item_id);

-- Rows that could not be mapped or stored, with all that is needed to try again.
CREATE TABLE IF NOT EXISTS stepfast_quarantine (
    id {sequence},
    feed {label} NOT NULL,
    item_id {label} NOT NULL,
    stage VARCHAR(20) NOT NULL,
    code {label} NOT NULL,
    message {document} NOT NULL,
    run_id {key} NOT NULL,
    mapper_version {label},
    content_hash VARCHAR(64) NOT NULL,
    payload {document} NOT NULL,
    first_seen_at {instant} NOT NULL,
    last_seen_at {instant} NOT NULL,
    hits {counter} NOT NULL DEFAULT 1,
    state {quarantine_state} NOT NULL DEFAULT 'open',
    note VARCHAR(500)
) {table_options};

CREATE UNIQUE INDEX {if_not_exists} stepfast_quarantine_item ON stepfast_quarantine (feed, item_id, stage);
CREATE INDEX {if_not_exists} stepfast_quarantine_state ON stepfast_quarantine (feed, state);

-- Debts: ranges that could not be verified, and must be read again with their own window.
CREATE TABLE IF NOT EXISTS stepfast_debt (
    id {sequence},
    digest VARCHAR(64) NOT NULL,
    feed {label} NOT NULL,
    name {label} NOT NULL,
    span {document} NOT NULL,
    window_from {instant},
    window_to {instant} NOT NULL,
    run_id {key} NOT NULL,
    opened_at {instant} NOT NULL,
    tries {counter} NOT NULL DEFAULT 0,
    state {debt_state} NOT NULL DEFAULT 'open',
    closed_by {key},
    closed_at {instant},
    reason VARCHAR(500)
) {table_options};

CREATE UNIQUE INDEX {if_not_exists} stepfast_debt_digest ON stepfast_debt (digest);
CREATE INDEX {if_not_exists} stepfast_debt_open ON stepfast_debt (feed, state);
