CREATE TABLE IF NOT EXISTS stepfast_schema (
        component VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
        version INTEGER NOT NULL,
        name VARCHAR(100) NOT NULL,
        applied_at BIGINT NOT NULL,
        PRIMARY KEY (component, version)
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

-- stepfast 0001 first

-- The leased step. Unfinished jobs live in one small hot table; ended ones move to the archive in the
-- transaction that ends them. Instants are microseconds since 1970, UTC, on the database's clock.
-- Every column has a default except id, kind and payload, so that a plain INSERT is a valid enqueue.
-- alone: 1 if a suspect must run with nothing beside it.
-- has_dependants: 1 if another job may wait for this one. The end of every other job looks no further, and pays nothing.

CREATE TABLE IF NOT EXISTS stepfast_job (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    queue VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'default',
    kind VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    state VARCHAR(10) NOT NULL DEFAULT 'ready' CHECK (state IN ('scheduled', 'ready', 'suspect', 'leased', 'held', 'waiting')),
    priority INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN -32768 AND 32767),
    ready_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (ready_at BETWEEN -62135596800000000 AND 253402300799999999),
    created_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (created_at BETWEEN -62135596800000000 AND 253402300799999999),
    updated_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (updated_at BETWEEN -62135596800000000 AND 253402300799999999),
    unique_key VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    step INTEGER NOT NULL DEFAULT 0 CHECK (step BETWEEN 0 AND 1000000000),
    failures INTEGER NOT NULL DEFAULT 0 CHECK (failures BETWEEN 0 AND 1000000000),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (crashes BETWEEN 0 AND 1000000000),
    owner BIGINT,
    fence BIGINT NOT NULL DEFAULT 0,
    committed_fence BIGINT,
    leased_at BIGINT CHECK (leased_at BETWEEN -62135596800000000 AND 253402300799999999),
    leased_by VARCHAR(100),
    lease_until BIGINT CHECK (lease_until BETWEEN -62135596800000000 AND 253402300799999999),
    cancel_at BIGINT CHECK (cancel_at BETWEEN -62135596800000000 AND 253402300799999999),
    held_by VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    trace VARCHAR(55),
    progress INTEGER NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    progress_note VARCHAR(500),
    error_group VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    last_error LONGTEXT,
    cursor_json LONGTEXT,
    payload LONGTEXT NOT NULL CHECK (JSON_VALID(payload)),
    has_dependants INTEGER NOT NULL DEFAULT 0 CHECK (has_dependants BETWEEN 0 AND 1),
    alone INTEGER NOT NULL DEFAULT 0 CHECK (alone BETWEEN 0 AND 1)
)  ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX stepfast_job_ready ON stepfast_job (queue, state, priority DESC, ready_at, id);

CREATE INDEX stepfast_job_scheduled ON stepfast_job (state, ready_at);

CREATE INDEX stepfast_job_leased ON stepfast_job (owner, lease_until);

CREATE INDEX stepfast_job_held ON stepfast_job (held_by, priority DESC, ready_at, id);

CREATE UNIQUE INDEX stepfast_job_unique ON stepfast_job (unique_key, kind);

-- Jobs that ended: done, cancelled, or dead (a dead letter waits here for an operator, whatever its age). A result is
-- kept for a shorter time than its job: then it is emptied, and result_expired_at says when.
CREATE TABLE IF NOT EXISTS stepfast_archive (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    queue VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    kind VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    state VARCHAR(10) NOT NULL CHECK (state IN ('done', 'dead', 'cancelled')),
    priority INTEGER NOT NULL CHECK (priority BETWEEN -32768 AND 32767),
    ready_at BIGINT NOT NULL CHECK (ready_at BETWEEN -62135596800000000 AND 253402300799999999),
    created_at BIGINT NOT NULL CHECK (created_at BETWEEN -62135596800000000 AND 253402300799999999),
    finished_at BIGINT NOT NULL CHECK (finished_at BETWEEN -62135596800000000 AND 253402300799999999),
    leased_at BIGINT CHECK (leased_at BETWEEN -62135596800000000 AND 253402300799999999),
    unique_key VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    step INTEGER NOT NULL CHECK (step BETWEEN 0 AND 1000000000),
    failures INTEGER NOT NULL CHECK (failures BETWEEN 0 AND 1000000000),
    crashes INTEGER NOT NULL CHECK (crashes BETWEEN 0 AND 1000000000),
    committed_fence BIGINT,
    trace VARCHAR(55),
    progress INTEGER NOT NULL CHECK (progress BETWEEN 0 AND 100),
    progress_note VARCHAR(500),
    error_group VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    last_error LONGTEXT,
    cursor_json LONGTEXT,
    payload LONGTEXT NOT NULL,
    result LONGTEXT,
    result_expired_at BIGINT CHECK (result_expired_at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_archive_ended ON stepfast_archive (state, finished_at);

-- MariaDB has no partial indexes: a column that is empty where there is no result, and takes no room in the row.

ALTER TABLE stepfast_archive ADD COLUMN result_kind VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin AS (CASE WHEN result IS NOT NULL THEN kind END) VIRTUAL;

CREATE INDEX stepfast_archive_results ON stepfast_archive (result_kind, finished_at);

-- One row per worker process proves that it lives; its leases live as long as it does.
CREATE TABLE IF NOT EXISTS stepfast_worker (
    incarnation BIGINT NOT NULL PRIMARY KEY,
    worker_id VARCHAR(100) NOT NULL,
    state VARCHAR(10) NOT NULL CHECK (state IN ('alive', 'stopped', 'dead')),
    alive_until BIGINT NOT NULL CHECK (alive_until BETWEEN -62135596800000000 AND 253402300799999999),
    lease BIGINT NOT NULL CHECK (lease BETWEEN 0 AND 1000000000000000000),
    started_at BIGINT NOT NULL CHECK (started_at BETWEEN -62135596800000000 AND 253402300799999999),
    beat_at BIGINT NOT NULL CHECK (beat_at BETWEEN -62135596800000000 AND 253402300799999999),
    ended_at BIGINT CHECK (ended_at BETWEEN -62135596800000000 AND 253402300799999999),
    process VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    host VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    pid INTEGER NOT NULL,
    concurrency INTEGER NOT NULL CHECK (concurrency BETWEEN 0 AND 1000000000),
    active INTEGER NOT NULL DEFAULT 0 CHECK (active BETWEEN 0 AND 1000000000),
    abandoned INTEGER CHECK (abandoned BETWEEN 0 AND 1000000000),
    suspects_only INTEGER NOT NULL DEFAULT 0 CHECK (suspects_only BETWEEN 0 AND 1),
    guardian VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    guardian_pid INTEGER,
    queues LONGTEXT NOT NULL,
    active_ids LONGTEXT,
    report LONGTEXT
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_worker_alive ON stepfast_worker (state, alive_until);

CREATE TABLE IF NOT EXISTS stepfast_queue (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    paused_at BIGINT CHECK (paused_at BETWEEN -62135596800000000 AND 253402300799999999),
    note VARCHAR(500)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

-- Ids and keys that must be remembered longer than their job lives; never moved, pruned only after until_at.
-- kind: of the job, where the key is the id of one; it is known also after the job was pruned.
CREATE TABLE IF NOT EXISTS stepfast_key (
    id VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    job_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    kind VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    until_at BIGINT NOT NULL CHECK (until_at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_key_until ON stepfast_key (until_at);

CREATE TABLE IF NOT EXISTS stepfast_log (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    job_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    at BIGINT NOT NULL CHECK (at BETWEEN -62135596800000000 AND 253402300799999999),
    level VARCHAR(10) NOT NULL,
    step INTEGER NOT NULL CHECK (step BETWEEN 0 AND 1000000000),
    message LONGTEXT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_log_job ON stepfast_log (job_id, id);

-- Jobs that come after others: child_id waits for parent_id, and on_dead says what happens if that one dies or is
-- cancelled. `open`: it waits. `met`: it need not wait any more. `broken`: it ended because of this parent. The
-- completion job of a group waits for its members (bond 'member').
CREATE TABLE IF NOT EXISTS stepfast_dependency (
    child_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    parent_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    bond VARCHAR(10) NOT NULL CHECK (bond IN ('after', 'member')),
    on_dead VARCHAR(10) NOT NULL CHECK (on_dead IN ('wait', 'fail', 'run')),
    state VARCHAR(10) NOT NULL CHECK (state IN ('open', 'met', 'broken')),
    PRIMARY KEY (child_id, parent_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_dependency_parent ON stepfast_dependency (parent_id, state);

CREATE INDEX stepfast_dependency_open ON stepfast_dependency (state, child_id, parent_id);

-- Jobs that wait for something outside. Such a job is scheduled for the end of its patience; an event brings it forward.
-- An event goes to one wait, the oldest; without a wait it is kept for a while.

-- Sending an event and beginning to wait for it both lock its name first: neither can miss the other.
CREATE TABLE IF NOT EXISTS stepfast_event_name (
    id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL CHECK (at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_event_name_at ON stepfast_event_name (at);

-- Events that no job has waited for yet.
CREATE TABLE IF NOT EXISTS stepfast_event (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    sent_at BIGINT NOT NULL CHECK (sent_at BETWEEN -62135596800000000 AND 253402300799999999),
    until_at BIGINT NOT NULL CHECK (until_at BETWEEN -62135596800000000 AND 253402300799999999),
    payload LONGTEXT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_event_of ON stepfast_event (name, id);

CREATE INDEX  stepfast_event_until ON stepfast_event (until_at);

-- Jobs that wait, under the fence with which the wait began: when the job's fence has moved on, the wait is over.
CREATE TABLE IF NOT EXISTS stepfast_wait (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    job_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    fence BIGINT NOT NULL,
    until_at BIGINT NOT NULL CHECK (until_at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_wait_of ON stepfast_wait (name, id);

CREATE INDEX  stepfast_wait_until ON stepfast_wait (until_at);

-- Limits that hold across all workers. A rate keeps its theoretical arrival time (GCRA); a concurrency limit
-- keeps a row per slot taken. `due_at` says when to look whether held jobs may go on; NULL: none is held.

CREATE TABLE IF NOT EXISTS stepfast_limit (
    id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    arrival_at BIGINT NOT NULL DEFAULT 0 CHECK (arrival_at BETWEEN -62135596800000000 AND 253402300799999999),
    gap BIGINT NOT NULL DEFAULT 0 CHECK (gap BETWEEN 0 AND 1000000000000000000),
    tolerance BIGINT NOT NULL DEFAULT 0 CHECK (tolerance BETWEEN 0 AND 1000000000000000000),
    slots INTEGER NOT NULL DEFAULT 0 CHECK (slots BETWEEN 0 AND 1000000000),
    due_at BIGINT CHECK (due_at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX stepfast_limit_due ON stepfast_limit (due_at);

-- A slot is taken by a step, under its fence: when the fence has moved on, the slot is free, even if its worker died.
CREATE TABLE IF NOT EXISTS stepfast_slot (
    job_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    limit_id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    fence BIGINT NOT NULL,
    PRIMARY KEY (job_id, limit_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_slot_limit ON stepfast_slot (limit_id);

-- Schedules. Exactly one of cron, every (microseconds) and once_at says when. next_at is empty when nothing more
-- is due: a one-off that fired, or a schedule that was removed although the code declares it.
CREATE TABLE IF NOT EXISTS stepfast_schedule (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    kind VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    queue VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    priority INTEGER NOT NULL CHECK (priority BETWEEN -32768 AND 32767),
    payload LONGTEXT NOT NULL CHECK (JSON_VALID(payload)),
    cron VARCHAR(200),
    every BIGINT CHECK (every BETWEEN 0 AND 1000000000000000000),
    once_at BIGINT CHECK (once_at BETWEEN -62135596800000000 AND 253402300799999999),
    tz VARCHAR(60) NOT NULL,
    missed VARCHAR(10) NOT NULL CHECK (missed IN ('once', 'all', 'skip')),
    overlap VARCHAR(10) NOT NULL CHECK (overlap IN ('allow', 'skip')),
    tick_as VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    next_at BIGINT CHECK (next_at BETWEEN -62135596800000000 AND 253402300799999999),
    last_at BIGINT CHECK (last_at BETWEEN -62135596800000000 AND 253402300799999999),
    paused_at BIGINT CHECK (paused_at BETWEEN -62135596800000000 AND 253402300799999999),
    removed_at BIGINT CHECK (removed_at BETWEEN -62135596800000000 AND 253402300799999999),
    source VARCHAR(10) NOT NULL,
    declared LONGTEXT,
    note VARCHAR(500),
    changed_at BIGINT NOT NULL CHECK (changed_at BETWEEN -62135596800000000 AND 253402300799999999),
    revision BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_schedule_next ON stepfast_schedule (next_at);

CREATE TABLE IF NOT EXISTS stepfast_outbox (
    seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    channel VARCHAR(20) NOT NULL,
    destination VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    address LONGTEXT NOT NULL,
    dedupe_key VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    state VARCHAR(10) NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sent', 'dead')),
    attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts BETWEEN 0 AND 1000000000),
    created_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (created_at BETWEEN -62135596800000000 AND 253402300799999999),
    since_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (since_at BETWEEN -62135596800000000 AND 253402300799999999),
    due_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (due_at BETWEEN -62135596800000000 AND 253402300799999999),
    ended_at BIGINT CHECK (ended_at BETWEEN -62135596800000000 AND 253402300799999999),
    last_error LONGTEXT,
    job_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    trace VARCHAR(55),
    headers LONGTEXT,
    body LONGTEXT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE UNIQUE INDEX stepfast_outbox_id ON stepfast_outbox (id);

CREATE UNIQUE INDEX stepfast_outbox_dedupe ON stepfast_outbox (destination, dedupe_key);

CREATE INDEX stepfast_outbox_waiting ON stepfast_outbox (state, destination, seq);

CREATE INDEX stepfast_outbox_ended ON stepfast_outbox (state, ended_at);

CREATE INDEX  stepfast_outbox_job ON stepfast_outbox (job_id);

-- The relay that sends to a destination leases it under a fence: so its messages keep their order, and a relay that was
-- replaced records nothing. A row is made when a relay first meets the destination, and pruned when it was not used for long.
CREATE TABLE IF NOT EXISTS stepfast_destination (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL DEFAULT 0,
    leased_until BIGINT NOT NULL DEFAULT 0 CHECK (leased_until BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_destination_idle ON stepfast_destination (leased_until);

-- Alerts, one row per cause. Raising one again only counts; it is sent at notify_at, which lies behind the quiet time that
-- followed the last sending. message_ids are the messages of that sending, one per place where alerts go.
CREATE TABLE IF NOT EXISTS stepfast_alert (
    id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    severity VARCHAR(10) NOT NULL,
    title VARCHAR(200) NOT NULL,
    body LONGTEXT NOT NULL,
    raised BIGINT NOT NULL DEFAULT 0 CHECK (raised BETWEEN 0 AND 1000000000000000000),
    untold BIGINT NOT NULL DEFAULT 0 CHECK (untold BETWEEN 0 AND 1000000000000000000),
    first_at BIGINT NOT NULL CHECK (first_at BETWEEN -62135596800000000 AND 253402300799999999),
    last_at BIGINT NOT NULL CHECK (last_at BETWEEN -62135596800000000 AND 253402300799999999),
    quiet_for BIGINT CHECK (quiet_for BETWEEN 0 AND 1000000000000000000),
    quiet_until BIGINT NOT NULL DEFAULT 0 CHECK (quiet_until BETWEEN -62135596800000000 AND 253402300799999999),
    notify_at BIGINT CHECK (notify_at BETWEEN -62135596800000000 AND 253402300799999999),
    notified_at BIGINT CHECK (notified_at BETWEEN -62135596800000000 AND 253402300799999999),
    message_ids LONGTEXT
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX stepfast_alert_due ON stepfast_alert (notify_at);

CREATE INDEX  stepfast_alert_last ON stepfast_alert (last_at);

-- How far the dead letters have been looked at for alerts, and which of the last minutes were counted: a death may
-- be committed after a younger one.
CREATE TABLE IF NOT EXISTS stepfast_bookmark (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL CHECK (at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE TABLE IF NOT EXISTS stepfast_death (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    finished_at BIGINT NOT NULL CHECK (finished_at BETWEEN -62135596800000000 AND 253402300799999999),
    PRIMARY KEY (id, finished_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_death_old ON stepfast_death (finished_at);

-- Runs: a feed is read in partitions, page by page, into raw rows; these are consolidated into the target; then the
-- watermark moves. Windows, watermarks and observations are instants of the source's clock, everything else of ours.

CREATE TABLE IF NOT EXISTS stepfast_feed (
    id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    watermark BIGINT CHECK (watermark BETWEEN -62135596800000000 AND 253402300799999999),
    version BIGINT NOT NULL DEFAULT 0,
    last_run VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    skew BIGINT NOT NULL DEFAULT 0 CHECK (skew BETWEEN -1000000000000000000 AND 1000000000000000000),
    last_took BIGINT NOT NULL DEFAULT 0 CHECK (last_took BETWEEN 0 AND 1000000000000000000),
    troubles INTEGER NOT NULL DEFAULT 0 CHECK (troubles BETWEEN 0 AND 1000000000),
    paused_until BIGINT CHECK (paused_until BETWEEN -62135596800000000 AND 253402300799999999),
    pause_reason VARCHAR(500),
    export_to LONGTEXT,
    troubled_at BIGINT CHECK (troubled_at BETWEEN -62135596800000000 AND 253402300799999999),
    probe VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    updated_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (updated_at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

-- `active_feed` is the feed while the run is active: its unique index allows one active run per feed.
CREATE TABLE IF NOT EXISTS stepfast_run (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    feed VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    kind VARCHAR(12) NOT NULL CHECK (kind IN ('full', 'incremental', 'backfill', 'verify', 'remap')),
    scope VARCHAR(10) NOT NULL DEFAULT 'complete',
    state VARCHAR(20) NOT NULL CHECK (state IN ('planning', 'fetching', 'applying', 'sweeping', 'stalled', 'completed', 'published_partial', 'failed', 'failed_quality', 'cancelled')),
    stalled_in VARCHAR(20) CHECK (stalled_in IN ('planning', 'fetching', 'applying', 'sweeping', 'stalled', 'completed', 'published_partial', 'failed', 'failed_quality', 'cancelled')),
    active_feed VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    window_from BIGINT CHECK (window_from BETWEEN -62135596800000000 AND 253402300799999999),
    window_to BIGINT NOT NULL CHECK (window_to BETWEEN -62135596800000000 AND 253402300799999999),
    epoch INTEGER NOT NULL DEFAULT 0 CHECK (epoch BETWEEN 0 AND 1000000000),
    partitions INTEGER NOT NULL DEFAULT 0 CHECK (partitions BETWEEN 0 AND 1000000000),
    completed INTEGER NOT NULL DEFAULT 0 CHECK (completed BETWEEN 0 AND 1000000000),
    failed INTEGER NOT NULL DEFAULT 0 CHECK (failed BETWEEN 0 AND 1000000000),
    unverified INTEGER NOT NULL DEFAULT 0 CHECK (unverified BETWEEN 0 AND 1000000000),
    estimate BIGINT NOT NULL DEFAULT 0 CHECK (estimate BETWEEN 0 AND 1000000000000000000),
    baseline BIGINT CHECK (baseline BETWEEN 0 AND 1000000000000000000),
    requests BIGINT NOT NULL DEFAULT 0 CHECK (requests BETWEEN 0 AND 1000000000000000000),
    seen BIGINT NOT NULL DEFAULT 0 CHECK (seen BETWEEN 0 AND 1000000000000000000),
    rejected BIGINT NOT NULL DEFAULT 0 CHECK (rejected BETWEEN 0 AND 1000000000000000000),
    applied BIGINT NOT NULL DEFAULT 0 CHECK (applied BETWEEN 0 AND 1000000000000000000),
    quarantined BIGINT NOT NULL DEFAULT 0 CHECK (quarantined BETWEEN 0 AND 1000000000000000000),
    gone BIGINT NOT NULL DEFAULT 0 CHECK (gone BETWEEN 0 AND 1000000000000000000),
    differences BIGINT NOT NULL DEFAULT 0 CHECK (differences BETWEEN 0 AND 1000000000000000000),
    most_rows BIGINT CHECK (most_rows BETWEEN 0 AND 1000000000000000000),
    priority INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN -32768 AND 32767),
    rounds INTEGER NOT NULL DEFAULT 0 CHECK (rounds BETWEEN 0 AND 1000000000),
    shards INTEGER NOT NULL DEFAULT 0 CHECK (shards BETWEEN 0 AND 1000000000),
    forced INTEGER NOT NULL DEFAULT 0 CHECK (forced BETWEEN 0 AND 1),
    mapper_version VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    watermark_before BIGINT CHECK (watermark_before BETWEEN -62135596800000000 AND 253402300799999999),
    watermark_after BIGINT CHECK (watermark_after BETWEEN -62135596800000000 AND 253402300799999999),
    started_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (started_at BETWEEN -62135596800000000 AND 253402300799999999),
    updated_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (updated_at BETWEEN -62135596800000000 AND 253402300799999999),
    troubled_at BIGINT CHECK (troubled_at BETWEEN -62135596800000000 AND 253402300799999999),
    planned_at BIGINT CHECK (planned_at BETWEEN -62135596800000000 AND 253402300799999999),
    fetched_at BIGINT CHECK (fetched_at BETWEEN -62135596800000000 AND 253402300799999999),
    applied_at BIGINT CHECK (applied_at BETWEEN -62135596800000000 AND 253402300799999999),
    completed_at BIGINT CHECK (completed_at BETWEEN -62135596800000000 AND 253402300799999999),
    ended_at BIGINT CHECK (ended_at BETWEEN -62135596800000000 AND 253402300799999999),
    job_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    frontier LONGTEXT,
    reason LONGTEXT,
    trace VARCHAR(55)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE UNIQUE INDEX stepfast_run_active ON stepfast_run (active_feed);

CREATE INDEX  stepfast_run_of_feed ON stepfast_run (feed, started_at);

CREATE INDEX  stepfast_run_ended ON stepfast_run (ended_at);

-- A partition exists before anything can be lost. `seq` counts its committed requests, `epoch` its restarts. One that
-- reads a debt has the window of the debt, every other one that of its run.
CREATE TABLE IF NOT EXISTS stepfast_partition (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    run_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    number INTEGER NOT NULL CHECK (number BETWEEN 0 AND 1000000000),
    name VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    parent VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    span LONGTEXT NOT NULL,
    window_from BIGINT CHECK (window_from BETWEEN -62135596800000000 AND 253402300799999999),
    window_to BIGINT NOT NULL CHECK (window_to BETWEEN -62135596800000000 AND 253402300799999999),
    debt_id BIGINT,
    estimate BIGINT CHECK (estimate BETWEEN 0 AND 1000000000000000000),
    state VARCHAR(20) NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'running', 'done', 'done_unverified', 'split', 'failed', 'cancelled')),
    epoch INTEGER NOT NULL DEFAULT 0 CHECK (epoch BETWEEN 0 AND 1000000000),
    seq INTEGER NOT NULL DEFAULT 0,
    paging LONGTEXT,
    frontier LONGTEXT,
    next_offset BIGINT NOT NULL DEFAULT 0 CHECK (next_offset BETWEEN 0 AND 1000000000000000000),
    seen BIGINT NOT NULL DEFAULT 0 CHECK (seen BETWEEN 0 AND 1000000000000000000),
    rejected BIGINT NOT NULL DEFAULT 0 CHECK (rejected BETWEEN 0 AND 1000000000000000000),
    requests BIGINT NOT NULL DEFAULT 0 CHECK (requests BETWEEN 0 AND 1000000000000000000),
    counted BIGINT CHECK (counted BETWEEN 0 AND 1000000000000000000),
    job_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    worker_id VARCHAR(100),
    last_error LONGTEXT,
    created_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (created_at BETWEEN -62135596800000000 AND 253402300799999999),
    started_at BIGINT CHECK (started_at BETWEEN -62135596800000000 AND 253402300799999999),
    updated_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (updated_at BETWEEN -62135596800000000 AND 253402300799999999),
    troubled_at BIGINT CHECK (troubled_at BETWEEN -62135596800000000 AND 253402300799999999),
    ended_at BIGINT CHECK (ended_at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE UNIQUE INDEX  stepfast_partition_number ON stepfast_partition (run_id, number);

CREATE INDEX  stepfast_partition_of_run ON stepfast_partition (run_id, state);

CREATE INDEX  stepfast_partition_open ON stepfast_partition (state, updated_at);

-- The ledger: what every request asked and got.
CREATE TABLE IF NOT EXISTS stepfast_page (
    partition_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
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
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

-- Which items a partition has seen: anchors of its pages, and the proof that it is complete. Dropped with the run's end.
CREATE TABLE IF NOT EXISTS stepfast_seen (
    partition_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    item_id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    pass INTEGER NOT NULL,
    PRIMARY KEY (partition_id, item_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

-- The newest observation of every item. `pending`: 1 until it is consolidated, 2 if it was put into quarantine.
CREATE TABLE IF NOT EXISTS stepfast_raw (
    feed VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    item_id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    observed_at BIGINT NOT NULL CHECK (observed_at BETWEEN -62135596800000000 AND 253402300799999999),
    run_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    content_hash VARCHAR(64) NOT NULL,
    applied_hash VARCHAR(64),
    applied_at BIGINT CHECK (applied_at BETWEEN -62135596800000000 AND 253402300799999999),
    pending INTEGER NOT NULL DEFAULT 1 CHECK (pending IN (0, 1, 2)),
    strikes INTEGER NOT NULL DEFAULT 0 CHECK (strikes BETWEEN 0 AND 1000000000),
    gone_at BIGINT CHECK (gone_at BETWEEN -62135596800000000 AND 253402300799999999),
    struck_by VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    payload LONGTEXT NOT NULL,
    PRIMARY KEY (feed, item_id)
)  ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX stepfast_raw_pending ON stepfast_raw (feed, pending, item_id);

-- Rows that could not be mapped or stored, with all that is needed to try again.
CREATE TABLE IF NOT EXISTS stepfast_quarantine (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    feed VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    item_id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    stage VARCHAR(20) NOT NULL,
    code VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    message LONGTEXT NOT NULL,
    run_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    mapper_version VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    content_hash VARCHAR(64) NOT NULL,
    payload LONGTEXT NOT NULL,
    first_seen_at BIGINT NOT NULL CHECK (first_seen_at BETWEEN -62135596800000000 AND 253402300799999999),
    last_seen_at BIGINT NOT NULL CHECK (last_seen_at BETWEEN -62135596800000000 AND 253402300799999999),
    hits INTEGER NOT NULL DEFAULT 1 CHECK (hits BETWEEN 0 AND 1000000000),
    state VARCHAR(10) NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'replaying', 'replayed', 'superseded', 'discarded')),
    note VARCHAR(500)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE UNIQUE INDEX  stepfast_quarantine_item ON stepfast_quarantine (feed, item_id, stage);

CREATE INDEX  stepfast_quarantine_state ON stepfast_quarantine (feed, state);

-- Debts: ranges that could not be verified, and must be read again with their own window.
CREATE TABLE IF NOT EXISTS stepfast_debt (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    digest VARCHAR(64) NOT NULL,
    feed VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    name VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    span LONGTEXT NOT NULL,
    window_from BIGINT CHECK (window_from BETWEEN -62135596800000000 AND 253402300799999999),
    window_to BIGINT NOT NULL CHECK (window_to BETWEEN -62135596800000000 AND 253402300799999999),
    run_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    opened_at BIGINT NOT NULL CHECK (opened_at BETWEEN -62135596800000000 AND 253402300799999999),
    tries INTEGER NOT NULL DEFAULT 0 CHECK (tries BETWEEN 0 AND 1000000000),
    state VARCHAR(10) NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'closed')),
    closed_by VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    closed_at BIGINT CHECK (closed_at BETWEEN -62135596800000000 AND 253402300799999999),
    reason VARCHAR(500)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE UNIQUE INDEX  stepfast_debt_digest ON stepfast_debt (digest);

CREATE INDEX  stepfast_debt_open ON stepfast_debt (feed, state);

-- Queues of messages in the database itself, to run the same programs without a broker. A message is taken by writing a
-- fence and a time until which it is invisible to others.

CREATE TABLE IF NOT EXISTS stepfast_message_queue (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    created_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (created_at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

-- state: ready (also while it is held, or scheduled: visible_at tells), done, dead. `remembered` is the message's id for
-- as long as a second message with this id is swallowed; until_at says when the row may go.
CREATE TABLE IF NOT EXISTS stepfast_message (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    queue VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    message_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    remembered VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    state VARCHAR(10) NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'done', 'dead')),
    visible_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (visible_at BETWEEN -62135596800000000 AND 253402300799999999),
    fence BIGINT NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts BETWEEN 0 AND 1000000000),
    sent_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (sent_at BETWEEN -62135596800000000 AND 253402300799999999),
    until_at BIGINT CHECK (until_at BETWEEN -62135596800000000 AND 253402300799999999),
    subject VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    properties LONGTEXT NOT NULL,
    body LONGTEXT NOT NULL,
    reason VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    detail LONGTEXT
)  ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX stepfast_message_ready ON stepfast_message (queue, state, visible_at, id);

CREATE UNIQUE INDEX  stepfast_message_remembered ON stepfast_message (queue, remembered);

CREATE INDEX  stepfast_message_until ON stepfast_message (until_at);

-- Messages that a broker put aside, or that no worker understood: taken over from its dead-letter queue, so that there
-- is one list of dead letters and one way to retry them. `source` is the same for a message that is taken over twice.
CREATE TABLE IF NOT EXISTS stepfast_dead_message (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    source VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    transport VARCHAR(40) NOT NULL,
    address LONGTEXT NOT NULL,
    queue VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    message_id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    subject VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts BETWEEN 0 AND 1000000000),
    reason VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    detail LONGTEXT NOT NULL,
    sent_at BIGINT CHECK (sent_at BETWEEN -62135596800000000 AND 253402300799999999),
    found_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (found_at BETWEEN -62135596800000000 AND 253402300799999999),
    properties LONGTEXT NOT NULL,
    body LONGTEXT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE UNIQUE INDEX  stepfast_dead_message_source ON stepfast_dead_message (source);

CREATE INDEX  stepfast_dead_message_found ON stepfast_dead_message (found_at);

-- Tasks: messages of a queue, or of TASK_DATA, that became jobs. The row has the job's id, and the webhook that reports
-- the job's end; it stays for as long as the task's id is remembered in stepfast_key.
-- digest: of the payload; a message with the same task_id and another digest is another task.
CREATE TABLE IF NOT EXISTS stepfast_task (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    client VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    task_id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    task_type VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    digest VARCHAR(50),
    webhook_url LONGTEXT,
    source VARCHAR(40) NOT NULL,
    message_id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    received_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (received_at BETWEEN -62135596800000000 AND 253402300799999999),
    until_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (until_at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_task_name ON stepfast_task (task_id, client);

CREATE INDEX  stepfast_task_received ON stepfast_task (client, received_at);

CREATE INDEX  stepfast_task_until ON stepfast_task (until_at);

-- The other side: ends of tasks that a receiver of webhooks got. Each webhook is kept once, by its id.
CREATE TABLE IF NOT EXISTS stepfast_received (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    task_id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    client VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    task_type VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    status VARCHAR(20) NOT NULL,
    received_at BIGINT NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) CHECK (received_at BETWEEN -62135596800000000 AND 253402300799999999),
    body LONGTEXT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_received_task ON stepfast_received (task_id, received_at);

CREATE INDEX  stepfast_received_at ON stepfast_received (received_at);

-- The audit log: who did what, to what, and why. Written in the transaction of the action itself. A command that
-- works in batches has one row: each batch adds what it touched, and ended_at stays empty until the last one.
CREATE TABLE IF NOT EXISTS stepfast_audit (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL CHECK (at BETWEEN -62135596800000000 AND 253402300799999999),
    ended_at BIGINT CHECK (ended_at BETWEEN -62135596800000000 AND 253402300799999999),
    who VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    what VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    subject VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    why LONGTEXT,
    touched BIGINT NOT NULL CHECK (touched BETWEEN 0 AND 1000000000000000000),
    detail LONGTEXT
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

CREATE INDEX  stepfast_audit_at ON stepfast_audit (at, id);

CREATE INDEX  stepfast_audit_subject ON stepfast_audit (subject, at);

-- Names of fields that applications hide, so that the command line, which loads no application, hides them too.
CREATE TABLE IF NOT EXISTS stepfast_mask (
    id VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    seen_at BIGINT NOT NULL CHECK (seen_at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

-- An id of these tables, since databases of two servers may have the same name. One row that never changes.
CREATE TABLE IF NOT EXISTS stepfast_installation (
    id INTEGER NOT NULL PRIMARY KEY,
    name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    made_at BIGINT NOT NULL CHECK (made_at BETWEEN -62135596800000000 AND 253402300799999999)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

INSERT INTO stepfast_installation (id, name, made_at) VALUES (1, LOWER(HEX(RANDOM_BYTES(16))), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) ON DUPLICATE KEY UPDATE id = id;

-- The names that the views of each component have here: none, default (their own), or a prefix. See `stepfast migrate --views`.
CREATE TABLE IF NOT EXISTS stepfast_view_names (
    id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    names VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='made by stepfast migrate';

INSERT INTO stepfast_schema (component, version, name, applied_at) VALUES ('stepfast', 1, 'first', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

CREATE ALGORITHM = TEMPTABLE VIEW partition_progress AS
SELECT p.run_id, CONCAT('partition-', p.number) AS partition_id, CAST(p.next_offset AS SIGNED) AS next_offset,
       p.state IN ('done', 'done_unverified') AS completed,
       FROM_UNIXTIME(p.created_at * 0.000001) AS created_at, FROM_UNIXTIME(p.updated_at * 0.000001) AS updated_at
  FROM stepfast_partition p
 WHERE p.state <> 'split' AND 'made by stepfast migrate: fe7205a8' <> '';

CREATE VIEW processing_jobs AS
SELECT j.id, COALESCE(j.unique_key, j.id) AS job_id, JSON_VALUE(j.payload, '$.order_id') AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' WHEN 'waiting' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS locked_by,
       CASE j.state WHEN 'leased' THEN FROM_UNIXTIME(COALESCE(j.lease_until, w.alive_until) / 1000000) END AS locked_until,
       j.last_error, FROM_UNIXTIME(j.created_at / 1000000) AS created_at,
       FROM_UNIXTIME(greatest(j.updated_at, COALESCE(CASE j.state WHEN 'leased' THEN w.beat_at END, 0)) / 1000000) AS updated_at,
       CAST(NULL AS DATETIME(6)) AS finished_at
  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE 'made by stepfast migrate: 90552c65' <> ''
UNION ALL
SELECT a.id, COALESCE(a.unique_key, a.id), JSON_VALUE(a.payload, '$.order_id'), a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       NULL, NULL, a.last_error, FROM_UNIXTIME(a.created_at / 1000000), FROM_UNIXTIME(a.finished_at / 1000000),
       FROM_UNIXTIME(a.finished_at / 1000000)
  FROM stepfast_archive a;

CREATE ALGORITHM = TEMPTABLE VIEW run_metadata AS
SELECT r.id AS run_id,
       CASE WHEN r.window_from IS NULL THEN 'full' ELSE 'incremental' END AS run_type,
       CASE WHEN r.state = 'planning' OR r.stalled_in = 'planning' THEN 1
            ELSE (SELECT count(*) FROM stepfast_partition p WHERE p.run_id = r.id AND p.state <> 'split')
       END AS expected_workers,
       (SELECT count(*) FROM stepfast_partition p
         WHERE p.run_id = r.id AND p.state IN ('done', 'done_unverified')) AS completed_workers,
       greatest((SELECT count(*) FROM stepfast_partition p WHERE p.run_id = r.id AND p.state IN ('failed', 'cancelled')),
                CASE WHEN r.ended_at IS NOT NULL AND r.state <> 'completed' THEN 1 ELSE 0 END) AS failed_workers,
       FROM_UNIXTIME(r.watermark_before * 0.000001) AS watermark_before,
       FROM_UNIXTIME(r.watermark_after * 0.000001) AS watermark_after,
       FROM_UNIXTIME(r.started_at * 0.000001) AS started_at,
       CASE r.state WHEN 'completed' THEN FROM_UNIXTIME(r.completed_at * 0.000001) END AS completed_at
  FROM stepfast_run r
 WHERE 'made by stepfast migrate: a01fae67' <> '';

CREATE ALGORITHM = TEMPTABLE VIEW worker_runs AS
SELECT p.id, p.run_id, CONCAT('partition-', p.number) AS partition_id,
       COALESCE(CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END, p.worker_id, 'unknown') AS worker_id,
       CASE WHEN p.state IN ('done', 'done_unverified') THEN 'completed'
            WHEN p.state IN ('failed', 'cancelled') THEN 'failed' ELSE 'running' END AS status,
       CAST(p.seen AS SIGNED) AS records_processed,
       CASE WHEN p.state IN ('ready', 'running') THEN CASE WHEN j.failures + j.crashes > 0 THEN j.last_error
                                                           WHEN p.troubled_at >= p.updated_at THEN p.last_error END
            WHEN p.state = 'cancelled' THEN COALESCE(p.last_error, 'cancelled')
            WHEN p.state <> 'done' THEN p.last_error END AS error_message,
       JSON_OBJECT('range', JSON_EXTRACT(p.span, '$'), 'window', JSON_OBJECT(
           'from', DATE_FORMAT(TIMESTAMPADD(MICROSECOND, p.window_from, '1970-01-01'), '%Y-%m-%dT%H:%i:%s.%fZ'),
           'to', DATE_FORMAT(TIMESTAMPADD(MICROSECOND, p.window_to, '1970-01-01'), '%Y-%m-%dT%H:%i:%s.%fZ'))) AS work_item_payload,
       FROM_UNIXTIME(COALESCE(p.started_at, j.leased_at, p.created_at) * 0.000001) AS started_at,
       CASE WHEN p.state NOT IN ('ready', 'running') THEN FROM_UNIXTIME(p.ended_at * 0.000001) END AS completed_at
  FROM stepfast_partition p LEFT JOIN stepfast_job j ON j.id = p.job_id LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE p.state <> 'split' AND (p.state <> 'ready' OR p.started_at IS NOT NULL OR j.state = 'leased') AND 'made by stepfast migrate: 50083db9' <> '';

INSERT INTO stepfast_view_names (id, names) VALUES ('stepfast', 'default');
