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
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    queue VARCHAR(128) COLLATE "C" NOT NULL DEFAULT 'default',
    kind VARCHAR(200) COLLATE "C" NOT NULL,
    state VARCHAR(10) NOT NULL DEFAULT 'ready',
    priority INTEGER NOT NULL DEFAULT 0,
    ready_at BIGINT NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    created_at BIGINT NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    updated_at BIGINT NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    unique_key VARCHAR(128) COLLATE "C",
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
    error_group VARCHAR(200) COLLATE "C",
    last_error TEXT,
    cursor_json TEXT,
    payload JSON NOT NULL
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off) ;

CREATE INDEX IF NOT EXISTS holdfast_job_ready ON holdfast_job (queue, priority DESC, ready_at, id) WHERE state = 'ready';

CREATE INDEX IF NOT EXISTS holdfast_job_scheduled ON holdfast_job (ready_at) WHERE state = 'scheduled';

CREATE INDEX IF NOT EXISTS holdfast_job_suspect ON holdfast_job (ready_at) WHERE state = 'suspect';

CREATE INDEX IF NOT EXISTS holdfast_job_leased ON holdfast_job (owner, lease_until) WHERE state = 'leased';

-- Unique while unfinished: nothing but the end of the job frees its key.

CREATE UNIQUE INDEX IF NOT EXISTS holdfast_job_unique ON holdfast_job (unique_key) WHERE unique_key IS NOT NULL;

-- Jobs that ended: done, cancelled, or dead (a dead letter waits here for an operator, whatever its age).
CREATE TABLE IF NOT EXISTS holdfast_archive (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    queue VARCHAR(128) COLLATE "C" NOT NULL,
    kind VARCHAR(200) COLLATE "C" NOT NULL,
    state VARCHAR(10) NOT NULL,
    priority INTEGER NOT NULL,
    ready_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    finished_at BIGINT NOT NULL,
    leased_at BIGINT,
    unique_key VARCHAR(128) COLLATE "C",
    step INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    committed_fence BIGINT,
    progress INTEGER NOT NULL,
    progress_note VARCHAR(500),
    error_group VARCHAR(200) COLLATE "C",
    last_error TEXT,
    cursor_json TEXT,
    payload TEXT NOT NULL,
    result TEXT
) ;

CREATE INDEX IF NOT EXISTS holdfast_archive_ended ON holdfast_archive (state, finished_at);

-- The operators' view sorts by its own timestamps; this lets PostgreSQL find the newest without sorting all.

CREATE INDEX IF NOT EXISTS holdfast_archive_created ON holdfast_archive (to_timestamp(created_at / 1000000.0));

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
    process VARCHAR(200) COLLATE "C" NOT NULL,
    host VARCHAR(200) COLLATE "C" NOT NULL,
    pid INTEGER NOT NULL,
    concurrency INTEGER NOT NULL,
    active INTEGER NOT NULL DEFAULT 0,
    abandoned INTEGER,
    queues TEXT NOT NULL,
    active_ids TEXT
) ;

CREATE INDEX IF NOT EXISTS holdfast_worker_alive ON holdfast_worker (state, alive_until);

CREATE TABLE IF NOT EXISTS holdfast_queue (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    paused_at BIGINT,
    note VARCHAR(500)
) ;

-- Ids and keys that must be remembered longer than their job lives; never moved, pruned only after until_at.
CREATE TABLE IF NOT EXISTS holdfast_key (
    id VARCHAR(200) COLLATE "C" NOT NULL PRIMARY KEY,
    job_id VARCHAR(128) COLLATE "C" NOT NULL,
    until_at BIGINT NOT NULL
) ;

CREATE INDEX IF NOT EXISTS holdfast_key_until ON holdfast_key (until_at);

CREATE TABLE IF NOT EXISTS holdfast_log (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id VARCHAR(128) COLLATE "C" NOT NULL,
    at BIGINT NOT NULL,
    level VARCHAR(10) NOT NULL,
    step INTEGER NOT NULL,
    message TEXT NOT NULL
) ;

CREATE INDEX IF NOT EXISTS holdfast_log_job ON holdfast_log (job_id, id);

-- For a person at a SQL prompt, under the name and with the words of the operators' documents. Read-only.
-- (PostgreSQL reads nothing of a document that holds a NUL character: without a look at it first, one such
-- payload would make the whole view unreadable.)

CREATE OR REPLACE VIEW processing_jobs AS
SELECT j.id, CAST(COALESCE(j.unique_key, j.id) AS TEXT) AS job_id, CASE WHEN position('\u0000' IN CAST(j.payload AS TEXT)) = 0 THEN j.payload ->> 'order_id' END AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CAST(CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS VARCHAR(100)) AS locked_by,
       CASE j.state WHEN 'leased' THEN to_timestamp(COALESCE(j.lease_until, w.alive_until) / 1000000.0) END AS locked_until,
       j.last_error, to_timestamp(j.created_at / 1000000.0) AS created_at,
       to_timestamp(greatest(j.updated_at, CASE j.state WHEN 'leased' THEN w.beat_at END) / 1000000.0) AS updated_at,
       CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS finished_at
  FROM holdfast_job j LEFT JOIN holdfast_worker w ON w.incarnation = j.owner
UNION ALL
SELECT a.id, CAST(COALESCE(a.unique_key, a.id) AS TEXT), CASE WHEN position('\u0000' IN a.payload) = 0 THEN CAST(a.payload AS JSON) ->> 'order_id' END, a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       CAST(NULL AS VARCHAR(100)), CAST(NULL AS TIMESTAMP WITH TIME ZONE),
       a.last_error, to_timestamp(a.created_at / 1000000.0), to_timestamp(a.finished_at / 1000000.0),
       to_timestamp(a.finished_at / 1000000.0)
  FROM holdfast_archive a;

INSERT INTO holdfast_schema (version, name, applied_at) VALUES (1, 'engine', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT));
