-- The leased step. Unfinished jobs live in one small hot table; ended ones move to the archive in the
-- transaction that ends them. Instants are microseconds since 1970, UTC, on the database's clock.
-- Every column has a default except id, kind and payload, so that a plain INSERT is a valid enqueue.
-- alone: 1 if a suspect must run with nothing beside it.
-- has_dependants: 1 if another job may wait for this one. The end of every other job looks no further, and pays nothing.

CREATE TABLE IF NOT EXISTS stepfast_job (
    id {key} NOT NULL PRIMARY KEY,
    queue {key} NOT NULL DEFAULT 'default',
    kind {label} NOT NULL,
    state {job_state} NOT NULL DEFAULT 'ready',
    priority {priority} NOT NULL DEFAULT 0,
    ready_at {instant} NOT NULL DEFAULT ({now}),
    created_at {instant:hot} NOT NULL DEFAULT ({now}),
    updated_at {instant:hot} NOT NULL DEFAULT ({now}),
    unique_key {key},
    step {counter:hot} NOT NULL DEFAULT 0,
    failures {counter} NOT NULL DEFAULT 0,
    crashes {counter} NOT NULL DEFAULT 0,
    owner BIGINT,
    fence BIGINT NOT NULL DEFAULT 0,
    committed_fence BIGINT,
    leased_at {instant:hot},
    leased_by VARCHAR(100),
    lease_until {instant:hot},
    cancel_at {instant:hot},
    held_by {label},
    trace VARCHAR(55),
    progress {percentage:hot} NOT NULL DEFAULT 0,
    progress_note VARCHAR(500),
    error_group {label},
    last_error {document},
    cursor_json {document},
    payload {json:payload},
    has_dependants {flag:hot} NOT NULL DEFAULT 0,
    alone {flag:hot} NOT NULL DEFAULT 0
) {with_limits} {table_options};

-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_job_ready ON stepfast_job (queue, priority DESC, ready_at, id) WHERE state = 'ready';
-- only: mariadb
CREATE INDEX stepfast_job_ready ON stepfast_job (queue, state, priority DESC, ready_at, id);

-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_job_scheduled ON stepfast_job (ready_at) WHERE state = 'scheduled';
-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_job_suspect ON stepfast_job (ready_at) WHERE state = 'suspect';
-- only: mariadb
CREATE INDEX stepfast_job_scheduled ON stepfast_job (state, ready_at);

-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_job_leased ON stepfast_job (owner, lease_until) WHERE state = 'leased';
-- only: mariadb
CREATE INDEX stepfast_job_leased ON stepfast_job (owner, lease_until);

-- Jobs that wait for a limit, the most urgent first.
-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_job_held ON stepfast_job (held_by, priority DESC, ready_at, id) WHERE state = 'held';
-- only: mariadb
CREATE INDEX stepfast_job_held ON stepfast_job (held_by, priority DESC, ready_at, id);

-- Unique among the unfinished jobs of a kind: nothing but the end of the job frees its key.
-- only: postgresql, sqlite
CREATE UNIQUE INDEX IF NOT EXISTS stepfast_job_unique ON stepfast_job (unique_key, kind) WHERE unique_key IS NOT NULL;
-- only: mariadb
CREATE UNIQUE INDEX stepfast_job_unique ON stepfast_job (unique_key, kind);

-- Jobs that ended: done, cancelled, or dead (a dead letter waits here for an operator, whatever its age). A result is
-- kept for a shorter time than its job: then it is emptied, and result_expired_at says when.
CREATE TABLE IF NOT EXISTS stepfast_archive (
    id {key} NOT NULL PRIMARY KEY,
    queue {key} NOT NULL,
    kind {label} NOT NULL,
    state {ended_state} NOT NULL,
    priority {priority} NOT NULL,
    ready_at {instant} NOT NULL,
    created_at {instant:hot} NOT NULL,
    finished_at {instant} NOT NULL,
    leased_at {instant:hot},
    unique_key {key},
    step {counter:hot} NOT NULL,
    failures {counter} NOT NULL,
    crashes {counter} NOT NULL,
    committed_fence BIGINT,
    trace VARCHAR(55),
    progress {percentage:hot} NOT NULL,
    progress_note VARCHAR(500),
    error_group {label},
    last_error {document},
    cursor_json {document},
    payload {document} NOT NULL,
    result {document},
    result_expired_at {instant:hot}
) {table_options};

CREATE INDEX {if_not_exists} stepfast_archive_ended ON stepfast_archive (state, finished_at);

-- The operators' view sorts by its own timestamps; this lets PostgreSQL find the newest without sorting all.
-- only: postgresql
CREATE INDEX IF NOT EXISTS stepfast_archive_created ON stepfast_archive (to_timestamp(created_at / 1000000.0));

-- Which results are the oldest of their kind. Most jobs have none, and pay nothing here.
-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_archive_results ON stepfast_archive (kind, finished_at) WHERE result IS NOT NULL;
-- MariaDB has no partial indexes: a column that is empty where there is no result, and takes no room in the row.
-- only: mariadb
ALTER TABLE stepfast_archive ADD COLUMN result_kind {label} AS (CASE WHEN result IS NOT NULL THEN kind END) VIRTUAL;
-- only: mariadb
CREATE INDEX stepfast_archive_results ON stepfast_archive (result_kind, finished_at);

-- One row per worker process proves that it lives; its leases live as long as it does.
CREATE TABLE IF NOT EXISTS stepfast_worker (
    incarnation BIGINT NOT NULL PRIMARY KEY,
    worker_id VARCHAR(100) NOT NULL,
    state {worker_state} NOT NULL,
    alive_until {instant} NOT NULL,
    lease {total} NOT NULL,
    started_at {instant} NOT NULL,
    beat_at {instant} NOT NULL,
    ended_at {instant},
    process {label} NOT NULL,
    host {label} NOT NULL,
    pid INTEGER NOT NULL,
    concurrency {counter} NOT NULL,
    active {counter} NOT NULL DEFAULT 0,
    abandoned {counter},
    suspects_only {flag} NOT NULL DEFAULT 0,
    guardian {label},
    guardian_pid INTEGER,
    queues {document} NOT NULL,
    active_ids {document},
    report {document}
) {table_options};

CREATE INDEX {if_not_exists} stepfast_worker_alive ON stepfast_worker (state, alive_until);

CREATE TABLE IF NOT EXISTS stepfast_queue (
    id {key} NOT NULL PRIMARY KEY,
    paused_at {instant},
    note VARCHAR(500)
) {table_options};

-- Ids and keys that must be remembered longer than their job lives; never moved, pruned only after until_at.
-- kind: of the job, where the key is the id of one; it is known also after the job was pruned.
CREATE TABLE IF NOT EXISTS stepfast_key (
    id {long_label} NOT NULL PRIMARY KEY,
    job_id {key} NOT NULL,
    kind {label},
    until_at {instant:hot} NOT NULL
) {table_options};

CREATE INDEX {if_not_exists} stepfast_key_until ON stepfast_key (until_at);

CREATE TABLE IF NOT EXISTS stepfast_log (
    id {sequence},
    job_id {key} NOT NULL,
    at {instant:hot} NOT NULL,
    level VARCHAR(10) NOT NULL,
    step {counter:hot} NOT NULL,
    message {document} NOT NULL
) {table_options};

CREATE INDEX {if_not_exists} stepfast_log_job ON stepfast_log (job_id, id);
