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
    held_by VARCHAR(200) COLLATE "C",
    trace VARCHAR(55),
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

-- Jobs that wait for a limit, the most urgent first.

CREATE INDEX IF NOT EXISTS holdfast_job_held ON holdfast_job (held_by, priority DESC, ready_at, id) WHERE state = 'held';

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
    trace VARCHAR(55),
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

-- 0002 outbox

-- What is to leave the database: staged in somebody's transaction, sent after its commit. A message is sent at least
-- once, under an id that never changes, and in the order of seq per destination.
--
-- PostgreSQL gets no index on seq alone: to find the head of a line it would walk along it, over everything that was
-- sent in a week. The others cannot do without.

CREATE TABLE IF NOT EXISTS holdfast_outbox (
    seq BIGINT GENERATED ALWAYS AS IDENTITY,
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    channel VARCHAR(20) NOT NULL,
    destination VARCHAR(128) COLLATE "C" NOT NULL,
    address TEXT NOT NULL,
    dedupe_key VARCHAR(128) COLLATE "C",
    state VARCHAR(10) NOT NULL DEFAULT 'waiting',
    attempts INTEGER NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    since_at BIGINT NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    due_at BIGINT NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    ended_at BIGINT,
    last_error TEXT,
    job_id VARCHAR(128) COLLATE "C",
    trace VARCHAR(55),
    headers TEXT,
    body TEXT NOT NULL
) ;

-- The same cause is staged once for a destination, for as long as its message is kept.

CREATE UNIQUE INDEX IF NOT EXISTS holdfast_outbox_dedupe ON holdfast_outbox (destination, dedupe_key) WHERE dedupe_key IS NOT NULL;

-- The head of each destination's line.

CREATE INDEX IF NOT EXISTS holdfast_outbox_waiting ON holdfast_outbox (destination, seq) WHERE state = 'waiting';

CREATE INDEX IF NOT EXISTS holdfast_outbox_ended ON holdfast_outbox (state, ended_at) WHERE ended_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS holdfast_outbox_job ON holdfast_outbox (job_id);

-- Whoever sends to a destination leases it under a fence: so its messages keep their order, and nobody who was
-- replaced records anything. Made by the relay when it first meets one; forgotten when it was not used for long.
CREATE TABLE IF NOT EXISTS holdfast_destination (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL DEFAULT 0,
    leased_until BIGINT NOT NULL DEFAULT 0
) ;

CREATE INDEX IF NOT EXISTS holdfast_destination_idle ON holdfast_destination (leased_until);

-- One row per cause. Raising it again only counts; it is told at notify_at, which lies behind the quiet time that
-- followed the last telling. message_ids are the messages of that telling, one per place where alerts go.
CREATE TABLE IF NOT EXISTS holdfast_alert (
    id VARCHAR(200) COLLATE "C" NOT NULL PRIMARY KEY,
    severity VARCHAR(10) NOT NULL,
    title VARCHAR(200) NOT NULL,
    body TEXT NOT NULL,
    raised BIGINT NOT NULL DEFAULT 0,
    untold BIGINT NOT NULL DEFAULT 0,
    first_at BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    quiet_for BIGINT,
    quiet_until BIGINT NOT NULL DEFAULT 0,
    notify_at BIGINT,
    notified_at BIGINT,
    message_ids TEXT
) ;

CREATE INDEX IF NOT EXISTS holdfast_alert_due ON holdfast_alert (notify_at) WHERE notify_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS holdfast_alert_last ON holdfast_alert (last_at);

-- How far the dead letters have been looked at for alerts, and which of the last minutes were counted: a death may
-- be committed after a younger one.
CREATE TABLE IF NOT EXISTS holdfast_bookmark (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL
) ;

CREATE TABLE IF NOT EXISTS holdfast_death (
    id VARCHAR(128) COLLATE "C" NOT NULL,
    finished_at BIGINT NOT NULL,
    PRIMARY KEY (id, finished_at)
) ;

CREATE INDEX IF NOT EXISTS holdfast_death_old ON holdfast_death (finished_at);

INSERT INTO holdfast_schema (version, name, applied_at) VALUES (2, 'outbox', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT));

-- 0003 schedules

-- What is due when. Exactly one of cron, every (microseconds) and once_at says when. next_at is empty when nothing more
-- is due: a one-off that fired, or a schedule that was removed although the code declares it.
CREATE TABLE IF NOT EXISTS holdfast_schedule (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    kind VARCHAR(200) COLLATE "C" NOT NULL,
    queue VARCHAR(128) COLLATE "C" NOT NULL,
    priority INTEGER NOT NULL,
    payload JSON NOT NULL,
    cron VARCHAR(200),
    every BIGINT,
    once_at BIGINT,
    tz VARCHAR(60) NOT NULL,
    missed VARCHAR(10) NOT NULL,
    overlap VARCHAR(10) NOT NULL,
    tick_as VARCHAR(200) COLLATE "C",
    next_at BIGINT,
    last_at BIGINT,
    paused_at BIGINT,
    removed_at BIGINT,
    source VARCHAR(10) NOT NULL,
    declared TEXT,
    note VARCHAR(500),
    changed_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
) ;

CREATE INDEX IF NOT EXISTS holdfast_schedule_next ON holdfast_schedule (next_at);

INSERT INTO holdfast_schema (version, name, applied_at) VALUES (3, 'schedules', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT));

-- 0004 limits

-- Limits that hold across all workers. A rate keeps its theoretical arrival time (GCRA); a concurrency limit
-- keeps a row per slot taken. `due_at` says when to look whether held jobs may go on; NULL: none is held.

CREATE TABLE IF NOT EXISTS holdfast_limit (
    id VARCHAR(200) COLLATE "C" NOT NULL PRIMARY KEY,
    arrival_at BIGINT NOT NULL DEFAULT 0,
    gap BIGINT NOT NULL DEFAULT 0,
    tolerance BIGINT NOT NULL DEFAULT 0,
    slots INTEGER NOT NULL DEFAULT 0,
    due_at BIGINT
) ;

CREATE INDEX IF NOT EXISTS holdfast_limit_due ON holdfast_limit (due_at) WHERE due_at IS NOT NULL;

-- A slot is taken by a step, under its fence: when the fence has moved on, the slot is free, whoever died.
CREATE TABLE IF NOT EXISTS holdfast_slot (
    job_id VARCHAR(128) COLLATE "C" NOT NULL,
    limit_id VARCHAR(200) COLLATE "C" NOT NULL,
    fence BIGINT NOT NULL,
    PRIMARY KEY (job_id, limit_id)
) ;

CREATE INDEX IF NOT EXISTS holdfast_slot_limit ON holdfast_slot (limit_id);

INSERT INTO holdfast_schema (version, name, applied_at) VALUES (4, 'limits', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT));

-- 0005 audit_and_results

-- Who stepped in, what they did, to what, and why. Written in the transaction of the action itself. A command that
-- works in batches has one row: each batch adds what it touched, and ended_at stays empty until the last one.
CREATE TABLE IF NOT EXISTS holdfast_audit (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL,
    ended_at BIGINT,
    who VARCHAR(200) COLLATE "C" NOT NULL,
    what VARCHAR(200) COLLATE "C" NOT NULL,
    subject VARCHAR(200) COLLATE "C" NOT NULL,
    why TEXT,
    touched BIGINT NOT NULL,
    detail TEXT
) ;

CREATE INDEX IF NOT EXISTS holdfast_audit_at ON holdfast_audit (at, id);

CREATE INDEX IF NOT EXISTS holdfast_audit_subject ON holdfast_audit (subject, at);

-- A result is kept for a shorter time than its job: then it is emptied, and this says when.
ALTER TABLE holdfast_archive ADD COLUMN result_expired_at BIGINT;

-- Which results are the oldest of their kind. Most jobs have none, and pay nothing here.

CREATE INDEX IF NOT EXISTS holdfast_archive_results ON holdfast_archive (kind, finished_at) WHERE result IS NOT NULL;

INSERT INTO holdfast_schema (version, name, applied_at) VALUES (5, 'audit_and_results', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT));
