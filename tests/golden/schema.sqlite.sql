CREATE TABLE IF NOT EXISTS holdfast_schema (
        version INTEGER NOT NULL PRIMARY KEY,
        name VARCHAR(100) NOT NULL,
        applied_at BIGINT NOT NULL
    );

-- 0001 engine

-- The leased step. Unfinished jobs live in one small hot table; ended ones move to the archive in the
-- transaction that ends them. Instants are microseconds since 1970, UTC, on the database's clock.
-- Every column has a default except id, kind and payload, so that a plain INSERT is a valid enqueue.

CREATE TABLE IF NOT EXISTS holdfast_job (
    id VARCHAR(128) NOT NULL PRIMARY KEY,
    queue VARCHAR(128) NOT NULL DEFAULT 'default',
    kind VARCHAR(200) NOT NULL,
    state VARCHAR(10) NOT NULL DEFAULT 'ready',
    priority INTEGER NOT NULL DEFAULT 0,
    ready_at BIGINT NOT NULL DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)),
    created_at BIGINT NOT NULL DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)),
    updated_at BIGINT NOT NULL DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)),
    unique_key VARCHAR(128),
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
    progress INTEGER NOT NULL DEFAULT 0,
    progress_note VARCHAR(500),
    error_group VARCHAR(200),
    last_error TEXT,
    cursor_json TEXT,
    payload TEXT NOT NULL CHECK (json_valid(payload))
)  ;

CREATE INDEX IF NOT EXISTS holdfast_job_ready ON holdfast_job (queue, priority DESC, ready_at, id) WHERE state = 'ready';

CREATE INDEX IF NOT EXISTS holdfast_job_scheduled ON holdfast_job (ready_at) WHERE state = 'scheduled';

CREATE INDEX IF NOT EXISTS holdfast_job_suspect ON holdfast_job (ready_at) WHERE state = 'suspect';

CREATE INDEX IF NOT EXISTS holdfast_job_leased ON holdfast_job (owner, lease_until) WHERE state = 'leased';

-- Unique while unfinished: nothing but the end of the job frees its key.

CREATE UNIQUE INDEX IF NOT EXISTS holdfast_job_unique ON holdfast_job (unique_key) WHERE unique_key IS NOT NULL;

-- Jobs that ended: done, cancelled, or dead (a dead letter waits here for an operator, whatever its age).
CREATE TABLE IF NOT EXISTS holdfast_archive (
    id VARCHAR(128) NOT NULL PRIMARY KEY,
    queue VARCHAR(128) NOT NULL,
    kind VARCHAR(200) NOT NULL,
    state VARCHAR(10) NOT NULL,
    priority INTEGER NOT NULL,
    ready_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    finished_at BIGINT NOT NULL,
    leased_at BIGINT,
    unique_key VARCHAR(128),
    step INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    committed_fence BIGINT,
    progress INTEGER NOT NULL,
    progress_note VARCHAR(500),
    error_group VARCHAR(200),
    last_error TEXT,
    cursor_json TEXT,
    payload TEXT NOT NULL,
    result TEXT
) ;

CREATE INDEX IF NOT EXISTS holdfast_archive_ended ON holdfast_archive (state, finished_at);

-- A process proves that it lives by one row; its leases live as long as it does.
CREATE TABLE IF NOT EXISTS holdfast_worker (
    incarnation BIGINT NOT NULL PRIMARY KEY,
    worker_id VARCHAR(100) NOT NULL,
    state VARCHAR(10) NOT NULL,
    alive_until BIGINT NOT NULL,
    lease BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    beat_at BIGINT NOT NULL,
    ended_at BIGINT,
    process VARCHAR(200) NOT NULL,
    host VARCHAR(200) NOT NULL,
    pid INTEGER NOT NULL,
    concurrency INTEGER NOT NULL,
    active INTEGER NOT NULL DEFAULT 0,
    abandoned INTEGER,
    queues TEXT NOT NULL,
    active_ids TEXT
) ;

CREATE INDEX IF NOT EXISTS holdfast_worker_alive ON holdfast_worker (state, alive_until);

CREATE TABLE IF NOT EXISTS holdfast_queue (
    id VARCHAR(128) NOT NULL PRIMARY KEY,
    paused_at BIGINT,
    note VARCHAR(500)
) ;

-- Ids and keys that must be remembered longer than their job lives; never moved, pruned only after until_at.
CREATE TABLE IF NOT EXISTS holdfast_key (
    id VARCHAR(200) NOT NULL PRIMARY KEY,
    job_id VARCHAR(128) NOT NULL,
    until_at BIGINT NOT NULL
) ;

CREATE INDEX IF NOT EXISTS holdfast_key_until ON holdfast_key (until_at);

CREATE TABLE IF NOT EXISTS holdfast_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id VARCHAR(128) NOT NULL,
    at BIGINT NOT NULL,
    level VARCHAR(10) NOT NULL,
    step INTEGER NOT NULL,
    message TEXT NOT NULL
) ;

CREATE INDEX IF NOT EXISTS holdfast_log_job ON holdfast_log (job_id, id);

CREATE VIEW IF NOT EXISTS processing_jobs AS
SELECT j.id, COALESCE(j.unique_key, j.id) AS job_id, json_extract(j.payload, '$.order_id') AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS locked_by,
       CASE j.state WHEN 'leased' THEN strftime('%Y-%m-%d %H:%M:%f', COALESCE(j.lease_until, w.alive_until) / 1000000.0, 'unixepoch') END AS locked_until,
       j.last_error, strftime('%Y-%m-%d %H:%M:%f', j.created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', max(j.updated_at, COALESCE(CASE j.state WHEN 'leased' THEN w.beat_at END, 0)) / 1000000.0, 'unixepoch') AS updated_at,
       NULL AS finished_at
  FROM holdfast_job j LEFT JOIN holdfast_worker w ON w.incarnation = j.owner
UNION ALL
SELECT a.id, COALESCE(a.unique_key, a.id), json_extract(a.payload, '$.order_id'), a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       NULL, NULL, a.last_error, strftime('%Y-%m-%d %H:%M:%f', a.created_at / 1000000.0, 'unixepoch'),
       strftime('%Y-%m-%d %H:%M:%f', a.finished_at / 1000000.0, 'unixepoch'),
       strftime('%Y-%m-%d %H:%M:%f', a.finished_at / 1000000.0, 'unixepoch')
  FROM holdfast_archive a;

INSERT INTO holdfast_schema (version, name, applied_at) VALUES (1, 'engine', CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER));
