-- The leased step. Unfinished jobs live in one small hot table; ended ones move to the archive in the
-- transaction that ends them. Instants are microseconds since 1970, UTC, on the database's clock.
-- Every column has a default except id, kind and payload, so that a plain INSERT is a valid enqueue.

CREATE TABLE IF NOT EXISTS stepfast_job (
    id {key} NOT NULL PRIMARY KEY,
    queue {key} NOT NULL DEFAULT 'default',
    kind {label} NOT NULL,
    state VARCHAR(10) NOT NULL DEFAULT 'ready',
    priority INTEGER NOT NULL DEFAULT 0,
    ready_at BIGINT NOT NULL DEFAULT ({now}),
    created_at BIGINT NOT NULL DEFAULT ({now}),
    updated_at BIGINT NOT NULL DEFAULT ({now}),
    unique_key {key},
    step INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    owner BIGINT,
    fence BIGINT NOT NULL DEFAULT 0,
    committed_fence BIGINT,
    leased_at BIGINT,
    leased_by VARCHAR(100),
    lease_until BIGINT,
    cancel_at BIGINT,
    held_by {label},
    trace VARCHAR(55),
    progress INTEGER NOT NULL DEFAULT 0,
    progress_note VARCHAR(500),
    error_group {label},
    last_error {document},
    cursor_json {document},
    payload {json:payload}
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

-- Unique while unfinished: nothing but the end of the job frees its key.
-- only: postgresql, sqlite
CREATE UNIQUE INDEX IF NOT EXISTS stepfast_job_unique ON stepfast_job (unique_key) WHERE unique_key IS NOT NULL;
-- only: mariadb
CREATE UNIQUE INDEX stepfast_job_unique ON stepfast_job (unique_key);

-- Jobs that ended: done, cancelled, or dead (a dead letter waits here for an operator, whatever its age).
CREATE TABLE IF NOT EXISTS stepfast_archive (
    id {key} NOT NULL PRIMARY KEY,
    queue {key} NOT NULL,
    kind {label} NOT NULL,
    state VARCHAR(10) NOT NULL,
    priority INTEGER NOT NULL,
    ready_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    finished_at BIGINT NOT NULL,
    leased_at BIGINT,
    unique_key {key},
    step INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    committed_fence BIGINT,
    trace VARCHAR(55),
    progress INTEGER NOT NULL,
    progress_note VARCHAR(500),
    error_group {label},
    last_error {document},
    cursor_json {document},
    payload {document} NOT NULL,
    result {document}
) {table_options};

CREATE INDEX {if_not_exists} stepfast_archive_ended ON stepfast_archive (state, finished_at);

-- The operators' view sorts by its own timestamps; this lets PostgreSQL find the newest without sorting all.
-- only: postgresql
CREATE INDEX IF NOT EXISTS stepfast_archive_created ON stepfast_archive (to_timestamp(created_at / 1000000.0));

-- A process proves that it lives by one row; its leases live as long as it does.
CREATE TABLE IF NOT EXISTS stepfast_worker (
    incarnation BIGINT NOT NULL PRIMARY KEY,
    worker_id VARCHAR(100) NOT NULL,
    state VARCHAR(10) NOT NULL,
    alive_until BIGINT NOT NULL,
    lease BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    beat_at BIGINT NOT NULL,
    ended_at BIGINT,
    process {label} NOT NULL,
    host {label} NOT NULL,
    pid INTEGER NOT NULL,
    concurrency INTEGER NOT NULL,
    active INTEGER NOT NULL DEFAULT 0,
    abandoned INTEGER,
    queues {document} NOT NULL,
    active_ids {document}
) {table_options};

CREATE INDEX {if_not_exists} stepfast_worker_alive ON stepfast_worker (state, alive_until);

CREATE TABLE IF NOT EXISTS stepfast_queue (
    id {key} NOT NULL PRIMARY KEY,
    paused_at BIGINT,
    note VARCHAR(500)
) {table_options};

-- Ids and keys that must be remembered longer than their job lives; never moved, pruned only after until_at.
CREATE TABLE IF NOT EXISTS stepfast_key (
    id {label} NOT NULL PRIMARY KEY,
    job_id {key} NOT NULL,
    until_at BIGINT NOT NULL
) {table_options};

CREATE INDEX {if_not_exists} stepfast_key_until ON stepfast_key (until_at);

CREATE TABLE IF NOT EXISTS stepfast_log (
    id {sequence},
    job_id {key} NOT NULL,
    at BIGINT NOT NULL,
    level VARCHAR(10) NOT NULL,
    step INTEGER NOT NULL,
    message {document} NOT NULL
) {table_options};

CREATE INDEX {if_not_exists} stepfast_log_job ON stepfast_log (job_id, id);

-- For a person at a SQL prompt, under the name and with the words of the operators' documents. Read-only.
-- (PostgreSQL reads nothing of a document that holds a NUL character: without a look at it first, one such
-- payload would make the whole view unreadable.)
-- only: postgresql
CREATE OR REPLACE VIEW processing_jobs AS
SELECT j.id, CAST(COALESCE(j.unique_key, j.id) AS TEXT) AS job_id, CASE WHEN position('\u0000' IN CAST(j.payload AS TEXT)) = 0 THEN j.payload ->> 'order_id' END AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CAST(CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS VARCHAR(100)) AS locked_by,
       CASE j.state WHEN 'leased' THEN to_timestamp(COALESCE(j.lease_until, w.alive_until) / 1000000.0) END AS locked_until,
       j.last_error, to_timestamp(j.created_at / 1000000.0) AS created_at,
       to_timestamp(greatest(j.updated_at, CASE j.state WHEN 'leased' THEN w.beat_at END) / 1000000.0) AS updated_at,
       CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS finished_at
  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
UNION ALL
SELECT a.id, CAST(COALESCE(a.unique_key, a.id) AS TEXT), CASE WHEN position('\u0000' IN a.payload) = 0 THEN CAST(a.payload AS JSON) ->> 'order_id' END, a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       CAST(NULL AS VARCHAR(100)), CAST(NULL AS TIMESTAMP WITH TIME ZONE),
       a.last_error, to_timestamp(a.created_at / 1000000.0), to_timestamp(a.finished_at / 1000000.0),
       to_timestamp(a.finished_at / 1000000.0)
  FROM stepfast_archive a;

-- only: mariadb
CREATE OR REPLACE VIEW processing_jobs AS
SELECT j.id, COALESCE(j.unique_key, j.id) AS job_id, JSON_VALUE(j.payload, '$.order_id') AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS locked_by,
       CASE j.state WHEN 'leased' THEN FROM_UNIXTIME(COALESCE(j.lease_until, w.alive_until) / 1000000) END AS locked_until,
       j.last_error, FROM_UNIXTIME(j.created_at / 1000000) AS created_at,
       FROM_UNIXTIME(greatest(j.updated_at, COALESCE(CASE j.state WHEN 'leased' THEN w.beat_at END, 0)) / 1000000) AS updated_at,
       CAST(NULL AS DATETIME(6)) AS finished_at
  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
UNION ALL
SELECT a.id, COALESCE(a.unique_key, a.id), JSON_VALUE(a.payload, '$.order_id'), a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       NULL, NULL, a.last_error, FROM_UNIXTIME(a.created_at / 1000000), FROM_UNIXTIME(a.finished_at / 1000000),
       FROM_UNIXTIME(a.finished_at / 1000000)
  FROM stepfast_archive a;

-- only: sqlite
CREATE VIEW IF NOT EXISTS processing_jobs AS
SELECT j.id, COALESCE(j.unique_key, j.id) AS job_id, json_extract(j.payload, '$.order_id') AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS locked_by,
       CASE j.state WHEN 'leased' THEN strftime('%Y-%m-%d %H:%M:%f', COALESCE(j.lease_until, w.alive_until) / 1000000.0, 'unixepoch') END AS locked_until,
       j.last_error, strftime('%Y-%m-%d %H:%M:%f', j.created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', max(j.updated_at, COALESCE(CASE j.state WHEN 'leased' THEN w.beat_at END, 0)) / 1000000.0, 'unixepoch') AS updated_at,
       NULL AS finished_at
  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
UNION ALL
SELECT a.id, COALESCE(a.unique_key, a.id), json_extract(a.payload, '$.order_id'), a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       NULL, NULL, a.last_error, strftime('%Y-%m-%d %H:%M:%f', a.created_at / 1000000.0, 'unixepoch'),
       strftime('%Y-%m-%d %H:%M:%f', a.finished_at / 1000000.0, 'unixepoch'),
       strftime('%Y-%m-%d %H:%M:%f', a.finished_at / 1000000.0, 'unixepoch')
  FROM stepfast_archive a;
