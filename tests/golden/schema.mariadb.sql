CREATE TABLE IF NOT EXISTS holdfast_schema (
        version INTEGER NOT NULL PRIMARY KEY,
        name VARCHAR(100) NOT NULL,
        applied_at BIGINT NOT NULL
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

-- 0001 engine

-- The leased step. Unfinished jobs live in one small hot table; ended ones move to the archive in the
-- transaction that ends them. Instants are microseconds since 1970, UTC, on the database's clock.
-- Every column has a default except id, kind and payload, so that a plain INSERT is a valid enqueue.

CREATE TABLE IF NOT EXISTS holdfast_job (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    queue VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'default',
    kind VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    state VARCHAR(10) NOT NULL DEFAULT 'ready',
    priority INTEGER NOT NULL DEFAULT 0,
    ready_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    created_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    updated_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    unique_key VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
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
    held_by VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    trace VARCHAR(55),
    progress INTEGER NOT NULL DEFAULT 0,
    progress_note VARCHAR(500),
    error_group VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    last_error LONGTEXT,
    cursor_json LONGTEXT,
    payload LONGTEXT NOT NULL CHECK (JSON_VALID(payload))
)  ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX holdfast_job_ready ON holdfast_job (queue, state, priority DESC, ready_at, id);

CREATE INDEX holdfast_job_scheduled ON holdfast_job (state, ready_at);

CREATE INDEX holdfast_job_leased ON holdfast_job (owner, lease_until);

CREATE INDEX holdfast_job_held ON holdfast_job (held_by, priority DESC, ready_at, id);

CREATE UNIQUE INDEX holdfast_job_unique ON holdfast_job (unique_key);

-- Jobs that ended: done, cancelled, or dead (a dead letter waits here for an operator, whatever its age).
CREATE TABLE IF NOT EXISTS holdfast_archive (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    queue VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    kind VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    state VARCHAR(10) NOT NULL,
    priority INTEGER NOT NULL,
    ready_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    finished_at BIGINT NOT NULL,
    leased_at BIGINT,
    unique_key VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    step INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    committed_fence BIGINT,
    trace VARCHAR(55),
    progress INTEGER NOT NULL,
    progress_note VARCHAR(500),
    error_group VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    last_error LONGTEXT,
    cursor_json LONGTEXT,
    payload LONGTEXT NOT NULL,
    result LONGTEXT
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX  holdfast_archive_ended ON holdfast_archive (state, finished_at);

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
    process VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    host VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    pid INTEGER NOT NULL,
    concurrency INTEGER NOT NULL,
    active INTEGER NOT NULL DEFAULT 0,
    abandoned INTEGER,
    queues LONGTEXT NOT NULL,
    active_ids LONGTEXT
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX  holdfast_worker_alive ON holdfast_worker (state, alive_until);

CREATE TABLE IF NOT EXISTS holdfast_queue (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    paused_at BIGINT,
    note VARCHAR(500)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

-- Ids and keys that must be remembered longer than their job lives; never moved, pruned only after until_at.
CREATE TABLE IF NOT EXISTS holdfast_key (
    id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    job_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    until_at BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX  holdfast_key_until ON holdfast_key (until_at);

CREATE TABLE IF NOT EXISTS holdfast_log (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    job_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    at BIGINT NOT NULL,
    level VARCHAR(10) NOT NULL,
    step INTEGER NOT NULL,
    message LONGTEXT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX  holdfast_log_job ON holdfast_log (job_id, id);

CREATE OR REPLACE VIEW processing_jobs AS
SELECT j.id, COALESCE(j.unique_key, j.id) AS job_id, JSON_VALUE(j.payload, '$.order_id') AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS locked_by,
       CASE j.state WHEN 'leased' THEN FROM_UNIXTIME(COALESCE(j.lease_until, w.alive_until) / 1000000) END AS locked_until,
       j.last_error, FROM_UNIXTIME(j.created_at / 1000000) AS created_at,
       FROM_UNIXTIME(greatest(j.updated_at, COALESCE(CASE j.state WHEN 'leased' THEN w.beat_at END, 0)) / 1000000) AS updated_at,
       CAST(NULL AS DATETIME(6)) AS finished_at
  FROM holdfast_job j LEFT JOIN holdfast_worker w ON w.incarnation = j.owner
UNION ALL
SELECT a.id, COALESCE(a.unique_key, a.id), JSON_VALUE(a.payload, '$.order_id'), a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       NULL, NULL, a.last_error, FROM_UNIXTIME(a.created_at / 1000000), FROM_UNIXTIME(a.finished_at / 1000000),
       FROM_UNIXTIME(a.finished_at / 1000000)
  FROM holdfast_archive a;

INSERT INTO holdfast_schema (version, name, applied_at) VALUES (1, 'engine', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

-- 0002 outbox

CREATE TABLE IF NOT EXISTS holdfast_outbox (
    seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    channel VARCHAR(20) NOT NULL,
    destination VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    address LONGTEXT NOT NULL,
    dedupe_key VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    state VARCHAR(10) NOT NULL DEFAULT 'waiting',
    attempts INTEGER NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    since_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    due_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    ended_at BIGINT,
    last_error LONGTEXT,
    job_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    trace VARCHAR(55),
    headers LONGTEXT,
    body LONGTEXT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE UNIQUE INDEX holdfast_outbox_id ON holdfast_outbox (id);

CREATE UNIQUE INDEX holdfast_outbox_dedupe ON holdfast_outbox (destination, dedupe_key);

CREATE INDEX holdfast_outbox_waiting ON holdfast_outbox (state, destination, seq);

CREATE INDEX holdfast_outbox_ended ON holdfast_outbox (state, ended_at);

CREATE INDEX  holdfast_outbox_job ON holdfast_outbox (job_id);

-- Whoever sends to a destination leases it under a fence: so its messages keep their order, and nobody who was
-- replaced records anything. Made by the relay when it first meets one; forgotten when it was not used for long.
CREATE TABLE IF NOT EXISTS holdfast_destination (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL DEFAULT 0,
    leased_until BIGINT NOT NULL DEFAULT 0
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX  holdfast_destination_idle ON holdfast_destination (leased_until);

-- One row per cause. Raising it again only counts; it is told at notify_at, which lies behind the quiet time that
-- followed the last telling. message_ids are the messages of that telling, one per place where alerts go.
CREATE TABLE IF NOT EXISTS holdfast_alert (
    id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    severity VARCHAR(10) NOT NULL,
    title VARCHAR(200) NOT NULL,
    body LONGTEXT NOT NULL,
    raised BIGINT NOT NULL DEFAULT 0,
    untold BIGINT NOT NULL DEFAULT 0,
    first_at BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    quiet_for BIGINT,
    quiet_until BIGINT NOT NULL DEFAULT 0,
    notify_at BIGINT,
    notified_at BIGINT,
    message_ids LONGTEXT
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX holdfast_alert_due ON holdfast_alert (notify_at);

CREATE INDEX  holdfast_alert_last ON holdfast_alert (last_at);

-- How far the dead letters have been looked at for alerts, and which of the last minutes were counted: a death may
-- be committed after a younger one.
CREATE TABLE IF NOT EXISTS holdfast_bookmark (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS holdfast_death (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    finished_at BIGINT NOT NULL,
    PRIMARY KEY (id, finished_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX  holdfast_death_old ON holdfast_death (finished_at);

INSERT INTO holdfast_schema (version, name, applied_at) VALUES (2, 'outbox', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

-- 0003 schedules

-- What is due when. Exactly one of cron, every (microseconds) and once_at says when. next_at is empty when nothing more
-- is due: a one-off that fired, or a schedule that was removed although the code declares it.
CREATE TABLE IF NOT EXISTS holdfast_schedule (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    kind VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    queue VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    priority INTEGER NOT NULL,
    payload LONGTEXT NOT NULL CHECK (JSON_VALID(payload)),
    cron VARCHAR(200),
    every BIGINT,
    once_at BIGINT,
    tz VARCHAR(60) NOT NULL,
    missed VARCHAR(10) NOT NULL,
    overlap VARCHAR(10) NOT NULL,
    tick_as VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    next_at BIGINT,
    last_at BIGINT,
    paused_at BIGINT,
    removed_at BIGINT,
    source VARCHAR(10) NOT NULL,
    declared LONGTEXT,
    note VARCHAR(500),
    changed_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX  holdfast_schedule_next ON holdfast_schedule (next_at);

INSERT INTO holdfast_schema (version, name, applied_at) VALUES (3, 'schedules', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

-- 0004 limits

-- Limits that hold across all workers. A rate keeps its theoretical arrival time (GCRA); a concurrency limit
-- keeps a row per slot taken. `due_at` says when to look whether held jobs may go on; NULL: none is held.

CREATE TABLE IF NOT EXISTS holdfast_limit (
    id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    arrival_at BIGINT NOT NULL DEFAULT 0,
    gap BIGINT NOT NULL DEFAULT 0,
    tolerance BIGINT NOT NULL DEFAULT 0,
    slots INTEGER NOT NULL DEFAULT 0,
    due_at BIGINT
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX holdfast_limit_due ON holdfast_limit (due_at);

-- A slot is taken by a step, under its fence: when the fence has moved on, the slot is free, whoever died.
CREATE TABLE IF NOT EXISTS holdfast_slot (
    job_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    limit_id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    fence BIGINT NOT NULL,
    PRIMARY KEY (job_id, limit_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX  holdfast_slot_limit ON holdfast_slot (limit_id);

INSERT INTO holdfast_schema (version, name, applied_at) VALUES (4, 'limits', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

-- 0005 audit_and_results

-- Who stepped in, what they did, to what, and why. Written in the transaction of the action itself. A command that
-- works in batches has one row: each batch adds what it touched, and ended_at stays empty until the last one.
CREATE TABLE IF NOT EXISTS holdfast_audit (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL,
    ended_at BIGINT,
    who VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    what VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    subject VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    why LONGTEXT,
    touched BIGINT NOT NULL,
    detail LONGTEXT
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE INDEX  holdfast_audit_at ON holdfast_audit (at, id);

CREATE INDEX  holdfast_audit_subject ON holdfast_audit (subject, at);

-- A result is kept for a shorter time than its job: then it is emptied, and this says when.
ALTER TABLE holdfast_archive ADD COLUMN result_expired_at BIGINT;

-- MariaDB has no partial indexes: a column that is empty where there is no result, and takes no room in the row.

ALTER TABLE holdfast_archive ADD COLUMN result_kind VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin AS (CASE WHEN result IS NOT NULL THEN kind END) VIRTUAL;

CREATE INDEX holdfast_archive_results ON holdfast_archive (result_kind, finished_at);

INSERT INTO holdfast_schema (version, name, applied_at) VALUES (5, 'audit_and_results', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));
