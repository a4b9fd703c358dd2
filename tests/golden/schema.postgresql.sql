CREATE TABLE IF NOT EXISTS stepfast_schema (
        component VARCHAR(128) COLLATE "C" NOT NULL,
        version INTEGER NOT NULL,
        name VARCHAR(100) NOT NULL,
        applied_at BIGINT NOT NULL,
        PRIMARY KEY (component, version)
    );

-- stepfast 0001 first

-- Types of columns that refuse what no code of ours writes. Elsewhere each such column has a CHECK: see `column_types.py`.

CREATE DOMAIN stepfast_instant AS BIGINT CHECK (VALUE BETWEEN -62135596800000000 AND 253402300799999999);

CREATE DOMAIN stepfast_counter AS INTEGER CHECK (VALUE BETWEEN 0 AND 1000000000);

CREATE DOMAIN stepfast_total AS BIGINT CHECK (VALUE BETWEEN 0 AND 1000000000000000000);

CREATE DOMAIN stepfast_skew AS BIGINT CHECK (VALUE BETWEEN -1000000000000000000 AND 1000000000000000000);

CREATE DOMAIN stepfast_flag AS INTEGER CHECK (VALUE BETWEEN 0 AND 1);

CREATE DOMAIN stepfast_percentage AS INTEGER CHECK (VALUE BETWEEN 0 AND 100);

CREATE DOMAIN stepfast_job_state AS VARCHAR(10) CHECK (VALUE IN ('scheduled', 'ready', 'suspect', 'leased', 'held', 'waiting'));

CREATE DOMAIN stepfast_ended_state AS VARCHAR(10) CHECK (VALUE IN ('done', 'dead', 'cancelled'));

CREATE DOMAIN stepfast_worker_state AS VARCHAR(10) CHECK (VALUE IN ('alive', 'stopped', 'dead'));

CREATE DOMAIN stepfast_bond AS VARCHAR(10) CHECK (VALUE IN ('after', 'member'));

CREATE DOMAIN stepfast_on_dead AS VARCHAR(10) CHECK (VALUE IN ('wait', 'fail', 'run'));

CREATE DOMAIN stepfast_edge_state AS VARCHAR(10) CHECK (VALUE IN ('open', 'met', 'broken'));

CREATE DOMAIN stepfast_missed AS VARCHAR(10) CHECK (VALUE IN ('once', 'all', 'skip'));

CREATE DOMAIN stepfast_overlap AS VARCHAR(10) CHECK (VALUE IN ('allow', 'skip'));

CREATE DOMAIN stepfast_message_state AS VARCHAR(10) CHECK (VALUE IN ('waiting', 'sent', 'dead'));

CREATE DOMAIN stepfast_run_kind AS VARCHAR(12) CHECK (VALUE IN ('full', 'incremental', 'backfill', 'verify', 'remap'));

CREATE DOMAIN stepfast_run_state AS VARCHAR(20) CHECK (VALUE IN ('planning', 'fetching', 'applying', 'sweeping', 'stalled', 'completed', 'published_partial', 'failed', 'failed_quality', 'cancelled'));

CREATE DOMAIN stepfast_partition_state AS VARCHAR(20) CHECK (VALUE IN ('ready', 'running', 'done', 'done_unverified', 'split', 'failed', 'cancelled'));

CREATE DOMAIN stepfast_quarantine_state AS VARCHAR(10) CHECK (VALUE IN ('open', 'replaying', 'replayed', 'superseded', 'discarded'));

CREATE DOMAIN stepfast_debt_state AS VARCHAR(10) CHECK (VALUE IN ('open', 'closed'));

CREATE DOMAIN stepfast_queued_state AS VARCHAR(10) CHECK (VALUE IN ('ready', 'done', 'dead'));

-- The leased step. Unfinished jobs live in one small hot table; ended ones move to the archive in the
-- transaction that ends them. Instants are microseconds since 1970, UTC, on the database's clock.
-- Every column has a default except id, kind and payload, so that a plain INSERT is a valid enqueue.
-- alone: 1 if a suspect must run with nothing beside it.
-- has_dependants: 1 if another job may wait for this one. The end of every other job looks no further, and pays nothing.

CREATE TABLE IF NOT EXISTS stepfast_job (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    queue VARCHAR(128) COLLATE "C" NOT NULL DEFAULT 'default',
    kind VARCHAR(200) COLLATE "C" NOT NULL,
    state stepfast_job_state NOT NULL DEFAULT 'ready',
    priority SMALLINT NOT NULL DEFAULT 0,
    ready_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    created_at BIGINT NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    updated_at BIGINT NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    unique_key VARCHAR(128) COLLATE "C",
    step INTEGER NOT NULL DEFAULT 0,
    failures stepfast_counter NOT NULL DEFAULT 0,
    crashes stepfast_counter NOT NULL DEFAULT 0,
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
    payload JSON NOT NULL,
    has_dependants INTEGER NOT NULL DEFAULT 0,
    alone INTEGER NOT NULL DEFAULT 0
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off) ;

CREATE INDEX IF NOT EXISTS stepfast_job_ready ON stepfast_job (queue, priority DESC, ready_at, id) WHERE state = 'ready';

CREATE INDEX IF NOT EXISTS stepfast_job_scheduled ON stepfast_job (ready_at) WHERE state = 'scheduled';

CREATE INDEX IF NOT EXISTS stepfast_job_suspect ON stepfast_job (ready_at) WHERE state = 'suspect';

CREATE INDEX IF NOT EXISTS stepfast_job_leased ON stepfast_job (owner, lease_until) WHERE state = 'leased';

-- Jobs that wait for a limit, the most urgent first.

CREATE INDEX IF NOT EXISTS stepfast_job_held ON stepfast_job (held_by, priority DESC, ready_at, id) WHERE state = 'held';

-- Unique among the unfinished jobs of a kind: nothing but the end of the job frees its key.

CREATE UNIQUE INDEX IF NOT EXISTS stepfast_job_unique ON stepfast_job (unique_key, kind) WHERE unique_key IS NOT NULL;

-- Jobs that ended: done, cancelled, or dead (a dead letter waits here for an operator, whatever its age). A result is
-- kept for a shorter time than its job: then it is emptied, and result_expired_at says when.
CREATE TABLE IF NOT EXISTS stepfast_archive (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    queue VARCHAR(128) COLLATE "C" NOT NULL,
    kind VARCHAR(200) COLLATE "C" NOT NULL,
    state stepfast_ended_state NOT NULL,
    priority SMALLINT NOT NULL,
    ready_at stepfast_instant NOT NULL,
    created_at BIGINT NOT NULL,
    finished_at stepfast_instant NOT NULL,
    leased_at BIGINT,
    unique_key VARCHAR(128) COLLATE "C",
    step INTEGER NOT NULL,
    failures stepfast_counter NOT NULL,
    crashes stepfast_counter NOT NULL,
    committed_fence BIGINT,
    trace VARCHAR(55),
    progress INTEGER NOT NULL,
    progress_note VARCHAR(500),
    error_group VARCHAR(200) COLLATE "C",
    last_error TEXT,
    cursor_json TEXT,
    payload TEXT NOT NULL,
    result TEXT,
    result_expired_at BIGINT
) ;

CREATE INDEX IF NOT EXISTS stepfast_archive_ended ON stepfast_archive (state, finished_at);

-- The operators' view sorts by its own timestamps; this lets PostgreSQL find the newest without sorting all.

CREATE INDEX IF NOT EXISTS stepfast_archive_created ON stepfast_archive (to_timestamp(created_at / 1000000.0));

-- Which results are the oldest of their kind. Most jobs have none, and pay nothing here.

CREATE INDEX IF NOT EXISTS stepfast_archive_results ON stepfast_archive (kind, finished_at) WHERE result IS NOT NULL;

-- One row per worker process proves that it lives; its leases live as long as it does.
CREATE TABLE IF NOT EXISTS stepfast_worker (
    incarnation BIGINT NOT NULL PRIMARY KEY,
    worker_id VARCHAR(100) NOT NULL,
    state stepfast_worker_state NOT NULL,
    alive_until stepfast_instant NOT NULL,
    lease stepfast_total NOT NULL,
    started_at stepfast_instant NOT NULL,
    beat_at stepfast_instant NOT NULL,
    ended_at stepfast_instant,
    process VARCHAR(200) COLLATE "C" NOT NULL,
    host VARCHAR(200) COLLATE "C" NOT NULL,
    pid INTEGER NOT NULL,
    concurrency stepfast_counter NOT NULL,
    active stepfast_counter NOT NULL DEFAULT 0,
    abandoned stepfast_counter,
    suspects_only stepfast_flag NOT NULL DEFAULT 0,
    guardian VARCHAR(200) COLLATE "C",
    guardian_pid INTEGER,
    queues TEXT NOT NULL,
    active_ids TEXT,
    report TEXT
) ;

CREATE INDEX IF NOT EXISTS stepfast_worker_alive ON stepfast_worker (state, alive_until);

CREATE TABLE IF NOT EXISTS stepfast_queue (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    paused_at stepfast_instant,
    note VARCHAR(500)
) ;

-- Ids and keys that must be remembered longer than their job lives; never moved, pruned only after until_at.
-- kind: of the job, where the key is the id of one; it is known also after the job was pruned.
CREATE TABLE IF NOT EXISTS stepfast_key (
    id VARCHAR(300) COLLATE "C" NOT NULL PRIMARY KEY,
    job_id VARCHAR(128) COLLATE "C" NOT NULL,
    kind VARCHAR(200) COLLATE "C",
    until_at BIGINT NOT NULL
) ;

CREATE INDEX IF NOT EXISTS stepfast_key_until ON stepfast_key (until_at);

CREATE TABLE IF NOT EXISTS stepfast_log (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id VARCHAR(128) COLLATE "C" NOT NULL,
    at BIGINT NOT NULL,
    level VARCHAR(10) NOT NULL,
    step INTEGER NOT NULL,
    message TEXT NOT NULL
) ;

CREATE INDEX IF NOT EXISTS stepfast_log_job ON stepfast_log (job_id, id);

-- Jobs that come after others: child_id waits for parent_id, and on_dead says what happens if that one dies or is
-- cancelled. `open`: it waits. `met`: it need not wait any more. `broken`: it ended because of this parent. The
-- completion job of a group waits for its members (bond 'member').
CREATE TABLE IF NOT EXISTS stepfast_dependency (
    child_id VARCHAR(128) COLLATE "C" NOT NULL,
    parent_id VARCHAR(128) COLLATE "C" NOT NULL,
    bond stepfast_bond NOT NULL,
    on_dead stepfast_on_dead NOT NULL,
    state stepfast_edge_state NOT NULL,
    PRIMARY KEY (child_id, parent_id)
) ;

CREATE INDEX IF NOT EXISTS stepfast_dependency_parent ON stepfast_dependency (parent_id, state);

-- Whether a child still waits for a parent, fast also if a hundred thousand of its parents are done.

CREATE INDEX IF NOT EXISTS stepfast_dependency_open ON stepfast_dependency (child_id, parent_id) WHERE state = 'open';

-- Jobs that wait for something outside. Such a job is scheduled for the end of its patience; an event brings it forward.
-- An event goes to one wait, the oldest; without a wait it is kept for a while.

-- Sending an event and beginning to wait for it both lock its name first: neither can miss the other.
CREATE TABLE IF NOT EXISTS stepfast_event_name (
    id VARCHAR(200) COLLATE "C" NOT NULL PRIMARY KEY,
    at stepfast_instant NOT NULL
) ;

CREATE INDEX IF NOT EXISTS stepfast_event_name_at ON stepfast_event_name (at);

-- Events that no job has waited for yet.
CREATE TABLE IF NOT EXISTS stepfast_event (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name VARCHAR(200) COLLATE "C" NOT NULL,
    event_id VARCHAR(128) COLLATE "C" NOT NULL,
    sent_at stepfast_instant NOT NULL,
    until_at stepfast_instant NOT NULL,
    payload TEXT NOT NULL
) ;

CREATE INDEX IF NOT EXISTS stepfast_event_of ON stepfast_event (name, id);

CREATE INDEX IF NOT EXISTS stepfast_event_until ON stepfast_event (until_at);

-- Jobs that wait, under the fence with which the wait began: when the job's fence has moved on, the wait is over.
CREATE TABLE IF NOT EXISTS stepfast_wait (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name VARCHAR(200) COLLATE "C" NOT NULL,
    job_id VARCHAR(128) COLLATE "C" NOT NULL,
    fence BIGINT NOT NULL,
    until_at stepfast_instant NOT NULL
) ;

CREATE INDEX IF NOT EXISTS stepfast_wait_of ON stepfast_wait (name, id);

CREATE INDEX IF NOT EXISTS stepfast_wait_until ON stepfast_wait (until_at);

-- Limits that hold across all workers. A rate keeps its theoretical arrival time (GCRA); a concurrency limit
-- keeps a row per slot taken. `due_at` says when to look whether held jobs may go on; NULL: none is held.

CREATE TABLE IF NOT EXISTS stepfast_limit (
    id VARCHAR(200) COLLATE "C" NOT NULL PRIMARY KEY,
    arrival_at stepfast_instant NOT NULL DEFAULT 0,
    gap stepfast_total NOT NULL DEFAULT 0,
    tolerance stepfast_total NOT NULL DEFAULT 0,
    slots stepfast_counter NOT NULL DEFAULT 0,
    due_at stepfast_instant
) ;

CREATE INDEX IF NOT EXISTS stepfast_limit_due ON stepfast_limit (due_at) WHERE due_at IS NOT NULL;

-- A slot is taken by a step, under its fence: when the fence has moved on, the slot is free, even if its worker died.
CREATE TABLE IF NOT EXISTS stepfast_slot (
    job_id VARCHAR(128) COLLATE "C" NOT NULL,
    limit_id VARCHAR(200) COLLATE "C" NOT NULL,
    fence BIGINT NOT NULL,
    PRIMARY KEY (job_id, limit_id)
) ;

CREATE INDEX IF NOT EXISTS stepfast_slot_limit ON stepfast_slot (limit_id);

-- Schedules. Exactly one of cron, every (microseconds) and once_at says when. next_at is empty when nothing more
-- is due: a one-off that fired, or a schedule that was removed although the code declares it.
CREATE TABLE IF NOT EXISTS stepfast_schedule (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    kind VARCHAR(200) COLLATE "C" NOT NULL,
    queue VARCHAR(128) COLLATE "C" NOT NULL,
    priority SMALLINT NOT NULL,
    payload JSON NOT NULL,
    cron VARCHAR(200),
    every stepfast_total,
    once_at stepfast_instant,
    tz VARCHAR(60) NOT NULL,
    missed stepfast_missed NOT NULL,
    overlap stepfast_overlap NOT NULL,
    tick_as VARCHAR(200) COLLATE "C",
    next_at stepfast_instant,
    last_at stepfast_instant,
    paused_at stepfast_instant,
    removed_at stepfast_instant,
    source VARCHAR(10) NOT NULL,
    declared TEXT,
    note VARCHAR(500),
    changed_at stepfast_instant NOT NULL,
    revision BIGINT NOT NULL
) ;

CREATE INDEX IF NOT EXISTS stepfast_schedule_next ON stepfast_schedule (next_at);

-- Messages that are to leave the database: staged in the transaction of their cause, sent after its commit. A message is sent
-- at least once, under an id that never changes, and in the order of seq per destination.
--
-- PostgreSQL gets no index on seq alone: to find the head of a line it would walk along it, over everything that was
-- sent in a week. The other two databases cannot do without.

CREATE TABLE IF NOT EXISTS stepfast_outbox (
    seq BIGINT GENERATED ALWAYS AS IDENTITY,
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    channel VARCHAR(20) NOT NULL,
    destination VARCHAR(128) COLLATE "C" NOT NULL,
    address TEXT NOT NULL,
    dedupe_key VARCHAR(128) COLLATE "C",
    state stepfast_message_state NOT NULL DEFAULT 'waiting',
    attempts stepfast_counter NOT NULL DEFAULT 0,
    created_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    since_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    due_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    ended_at stepfast_instant,
    last_error TEXT,
    job_id VARCHAR(128) COLLATE "C",
    trace VARCHAR(55),
    headers TEXT,
    body TEXT NOT NULL
) ;

-- The same cause is staged once for a destination, for as long as its message is kept.

CREATE UNIQUE INDEX IF NOT EXISTS stepfast_outbox_dedupe ON stepfast_outbox (destination, dedupe_key) WHERE dedupe_key IS NOT NULL;

-- The head of each destination's line.

CREATE INDEX IF NOT EXISTS stepfast_outbox_waiting ON stepfast_outbox (destination, seq) WHERE state = 'waiting';

CREATE INDEX IF NOT EXISTS stepfast_outbox_ended ON stepfast_outbox (state, ended_at) WHERE ended_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS stepfast_outbox_job ON stepfast_outbox (job_id);

-- The relay that sends to a destination leases it under a fence: so its messages keep their order, and a relay that was
-- replaced records nothing. A row is made when a relay first meets the destination, and pruned when it was not used for long.
CREATE TABLE IF NOT EXISTS stepfast_destination (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL DEFAULT 0,
    leased_until stepfast_instant NOT NULL DEFAULT 0
) ;

CREATE INDEX IF NOT EXISTS stepfast_destination_idle ON stepfast_destination (leased_until);

-- Alerts, one row per cause. Raising one again only counts; it is sent at notify_at, which lies behind the quiet time that
-- followed the last sending. message_ids are the messages of that sending, one per place where alerts go.
CREATE TABLE IF NOT EXISTS stepfast_alert (
    id VARCHAR(200) COLLATE "C" NOT NULL PRIMARY KEY,
    severity VARCHAR(10) NOT NULL,
    title VARCHAR(200) NOT NULL,
    body TEXT NOT NULL,
    raised stepfast_total NOT NULL DEFAULT 0,
    untold stepfast_total NOT NULL DEFAULT 0,
    first_at stepfast_instant NOT NULL,
    last_at stepfast_instant NOT NULL,
    quiet_for stepfast_total,
    quiet_until stepfast_instant NOT NULL DEFAULT 0,
    notify_at stepfast_instant,
    notified_at stepfast_instant,
    message_ids TEXT
) ;

CREATE INDEX IF NOT EXISTS stepfast_alert_due ON stepfast_alert (notify_at) WHERE notify_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS stepfast_alert_last ON stepfast_alert (last_at);

-- How far the dead letters have been looked at for alerts, and which of the last minutes were counted: a death may
-- be committed after a younger one.
CREATE TABLE IF NOT EXISTS stepfast_bookmark (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    at stepfast_instant NOT NULL
) ;

CREATE TABLE IF NOT EXISTS stepfast_death (
    id VARCHAR(128) COLLATE "C" NOT NULL,
    finished_at stepfast_instant NOT NULL,
    PRIMARY KEY (id, finished_at)
) ;

CREATE INDEX IF NOT EXISTS stepfast_death_old ON stepfast_death (finished_at);

-- Runs: a feed is read in partitions, page by page, into raw rows; these are consolidated into the target; then the
-- watermark moves. Windows, watermarks and observations are instants of the source's clock, everything else of ours.

CREATE TABLE IF NOT EXISTS stepfast_feed (
    id VARCHAR(200) COLLATE "C" NOT NULL PRIMARY KEY,
    watermark stepfast_instant,
    version BIGINT NOT NULL DEFAULT 0,
    last_run VARCHAR(128) COLLATE "C",
    skew stepfast_skew NOT NULL DEFAULT 0,
    last_took stepfast_total NOT NULL DEFAULT 0,
    troubles stepfast_counter NOT NULL DEFAULT 0,
    paused_until stepfast_instant,
    pause_reason VARCHAR(500),
    export_to TEXT,
    troubled_at stepfast_instant,
    probe VARCHAR(128) COLLATE "C",
    updated_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))
) ;

-- `active_feed` is the feed while the run is active: its unique index allows one active run per feed.
CREATE TABLE IF NOT EXISTS stepfast_run (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    feed VARCHAR(200) COLLATE "C" NOT NULL,
    kind stepfast_run_kind NOT NULL,
    scope VARCHAR(10) NOT NULL DEFAULT 'complete',
    state stepfast_run_state NOT NULL,
    stalled_in stepfast_run_state,
    active_feed VARCHAR(200) COLLATE "C",
    window_from stepfast_instant,
    window_to stepfast_instant NOT NULL,
    epoch stepfast_counter NOT NULL DEFAULT 0,
    partitions stepfast_counter NOT NULL DEFAULT 0,
    completed stepfast_counter NOT NULL DEFAULT 0,
    failed stepfast_counter NOT NULL DEFAULT 0,
    unverified stepfast_counter NOT NULL DEFAULT 0,
    estimate stepfast_total NOT NULL DEFAULT 0,
    baseline stepfast_total,
    requests stepfast_total NOT NULL DEFAULT 0,
    seen stepfast_total NOT NULL DEFAULT 0,
    rejected stepfast_total NOT NULL DEFAULT 0,
    applied stepfast_total NOT NULL DEFAULT 0,
    quarantined stepfast_total NOT NULL DEFAULT 0,
    gone stepfast_total NOT NULL DEFAULT 0,
    differences stepfast_total NOT NULL DEFAULT 0,
    most_rows stepfast_total,
    priority SMALLINT NOT NULL DEFAULT 0,
    rounds stepfast_counter NOT NULL DEFAULT 0,
    shards stepfast_counter NOT NULL DEFAULT 0,
    forced stepfast_flag NOT NULL DEFAULT 0,
    mapper_version VARCHAR(200) COLLATE "C",
    watermark_before stepfast_instant,
    watermark_after stepfast_instant,
    started_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    updated_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    troubled_at stepfast_instant,
    planned_at stepfast_instant,
    fetched_at stepfast_instant,
    applied_at stepfast_instant,
    completed_at stepfast_instant,
    ended_at stepfast_instant,
    job_id VARCHAR(128) COLLATE "C",
    frontier TEXT,
    reason TEXT,
    trace VARCHAR(55)
) ;

CREATE UNIQUE INDEX IF NOT EXISTS stepfast_run_active ON stepfast_run (active_feed) WHERE active_feed IS NOT NULL;

CREATE INDEX IF NOT EXISTS stepfast_run_of_feed ON stepfast_run (feed, started_at);

CREATE INDEX IF NOT EXISTS stepfast_run_ended ON stepfast_run (ended_at);

-- A partition exists before anything can be lost. `seq` counts its committed requests, `epoch` its restarts. One that
-- reads a debt has the window of the debt, every other one that of its run.
CREATE TABLE IF NOT EXISTS stepfast_partition (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    run_id VARCHAR(128) COLLATE "C" NOT NULL,
    number stepfast_counter NOT NULL,
    name VARCHAR(200) COLLATE "C" NOT NULL,
    parent VARCHAR(128) COLLATE "C",
    span TEXT NOT NULL,
    window_from stepfast_instant,
    window_to stepfast_instant NOT NULL,
    debt_id BIGINT,
    estimate stepfast_total,
    state stepfast_partition_state NOT NULL DEFAULT 'ready',
    epoch stepfast_counter NOT NULL DEFAULT 0,
    seq INTEGER NOT NULL DEFAULT 0,
    paging TEXT,
    frontier TEXT,
    next_offset stepfast_total NOT NULL DEFAULT 0,
    seen stepfast_total NOT NULL DEFAULT 0,
    rejected stepfast_total NOT NULL DEFAULT 0,
    requests stepfast_total NOT NULL DEFAULT 0,
    counted stepfast_total,
    job_id VARCHAR(128) COLLATE "C",
    worker_id VARCHAR(100),
    last_error TEXT,
    created_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    started_at stepfast_instant,
    updated_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    troubled_at stepfast_instant,
    ended_at stepfast_instant
) ;

CREATE UNIQUE INDEX IF NOT EXISTS stepfast_partition_number ON stepfast_partition (run_id, number);

CREATE INDEX IF NOT EXISTS stepfast_partition_of_run ON stepfast_partition (run_id, state);

CREATE INDEX IF NOT EXISTS stepfast_partition_open ON stepfast_partition (state, updated_at);

-- The ledger: what every request asked and got.
CREATE TABLE IF NOT EXISTS stepfast_page (
    partition_id VARCHAR(128) COLLATE "C" NOT NULL,
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
) ;

-- Which items a partition has seen: anchors of its pages, and the proof that it is complete. Dropped with the run's end.
CREATE TABLE IF NOT EXISTS stepfast_seen (
    partition_id VARCHAR(128) COLLATE "C" NOT NULL,
    item_id VARCHAR(200) COLLATE "C" NOT NULL,
    pass INTEGER NOT NULL,
    PRIMARY KEY (partition_id, item_id)
) ;

-- The newest observation of every item. `pending`: 1 until it is consolidated, 2 if it was put into quarantine.
CREATE TABLE IF NOT EXISTS stepfast_raw (
    feed VARCHAR(200) COLLATE "C" NOT NULL,
    item_id VARCHAR(200) COLLATE "C" NOT NULL,
    observed_at stepfast_instant NOT NULL,
    run_id VARCHAR(128) COLLATE "C" NOT NULL,
    content_hash VARCHAR(64) NOT NULL,
    applied_hash VARCHAR(64),
    applied_at stepfast_instant,
    pending INTEGER NOT NULL DEFAULT 1 CHECK (pending IN (0, 1, 2)),
    strikes stepfast_counter NOT NULL DEFAULT 0,
    gone_at stepfast_instant,
    struck_by VARCHAR(128) COLLATE "C",
    payload TEXT NOT NULL,
    PRIMARY KEY (feed, item_id)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off) ;

CREATE INDEX IF NOT EXISTS stepfast_raw_pending ON stepfast_raw (feed, item_id) WHERE pending = 1;

-- Rows that could not be mapped or stored, with all that is needed to try again.
CREATE TABLE IF NOT EXISTS stepfast_quarantine (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    feed VARCHAR(200) COLLATE "C" NOT NULL,
    item_id VARCHAR(200) COLLATE "C" NOT NULL,
    stage VARCHAR(20) NOT NULL,
    code VARCHAR(200) COLLATE "C" NOT NULL,
    message TEXT NOT NULL,
    run_id VARCHAR(128) COLLATE "C" NOT NULL,
    mapper_version VARCHAR(200) COLLATE "C",
    content_hash VARCHAR(64) NOT NULL,
    payload TEXT NOT NULL,
    first_seen_at stepfast_instant NOT NULL,
    last_seen_at stepfast_instant NOT NULL,
    hits stepfast_counter NOT NULL DEFAULT 1,
    state stepfast_quarantine_state NOT NULL DEFAULT 'open',
    note VARCHAR(500)
) ;

CREATE UNIQUE INDEX IF NOT EXISTS stepfast_quarantine_item ON stepfast_quarantine (feed, item_id, stage);

CREATE INDEX IF NOT EXISTS stepfast_quarantine_state ON stepfast_quarantine (feed, state);

-- Debts: ranges that could not be verified, and must be read again with their own window.
CREATE TABLE IF NOT EXISTS stepfast_debt (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest VARCHAR(64) NOT NULL,
    feed VARCHAR(200) COLLATE "C" NOT NULL,
    name VARCHAR(200) COLLATE "C" NOT NULL,
    span TEXT NOT NULL,
    window_from stepfast_instant,
    window_to stepfast_instant NOT NULL,
    run_id VARCHAR(128) COLLATE "C" NOT NULL,
    opened_at stepfast_instant NOT NULL,
    tries stepfast_counter NOT NULL DEFAULT 0,
    state stepfast_debt_state NOT NULL DEFAULT 'open',
    closed_by VARCHAR(128) COLLATE "C",
    closed_at stepfast_instant,
    reason VARCHAR(500)
) ;

CREATE UNIQUE INDEX IF NOT EXISTS stepfast_debt_digest ON stepfast_debt (digest);

CREATE INDEX IF NOT EXISTS stepfast_debt_open ON stepfast_debt (feed, state);

-- Queues of messages in the database itself, to run the same programs without a broker. A message is taken by writing a
-- fence and a time until which it is invisible to others.

CREATE TABLE IF NOT EXISTS stepfast_message_queue (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    created_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))
) ;

-- state: ready (also while it is held, or scheduled: visible_at tells), done, dead. `remembered` is the message's id for
-- as long as a second message with this id is swallowed; until_at says when the row may go.
CREATE TABLE IF NOT EXISTS stepfast_message (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    queue VARCHAR(128) COLLATE "C" NOT NULL,
    message_id VARCHAR(128) COLLATE "C" NOT NULL,
    remembered VARCHAR(128) COLLATE "C",
    state stepfast_queued_state NOT NULL DEFAULT 'ready',
    visible_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    fence BIGINT NOT NULL DEFAULT 0,
    attempts stepfast_counter NOT NULL DEFAULT 0,
    sent_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    until_at stepfast_instant,
    subject VARCHAR(200) COLLATE "C" NOT NULL,
    properties TEXT NOT NULL,
    body TEXT NOT NULL,
    reason VARCHAR(200) COLLATE "C",
    detail TEXT
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off) ;

CREATE INDEX IF NOT EXISTS stepfast_message_ready ON stepfast_message (queue, visible_at, id) WHERE state = 'ready';

CREATE INDEX IF NOT EXISTS stepfast_message_dead ON stepfast_message (queue, visible_at, id) WHERE state = 'dead';

CREATE UNIQUE INDEX IF NOT EXISTS stepfast_message_remembered ON stepfast_message (queue, remembered);

CREATE INDEX IF NOT EXISTS stepfast_message_until ON stepfast_message (until_at);

-- Messages that a broker put aside, or that no worker understood: taken over from its dead-letter queue, so that there
-- is one list of dead letters and one way to retry them. `source` is the same for a message that is taken over twice.
CREATE TABLE IF NOT EXISTS stepfast_dead_message (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    source VARCHAR(128) COLLATE "C" NOT NULL,
    transport VARCHAR(40) NOT NULL,
    address TEXT NOT NULL,
    queue VARCHAR(200) COLLATE "C" NOT NULL,
    message_id VARCHAR(200) COLLATE "C" NOT NULL,
    subject VARCHAR(200) COLLATE "C" NOT NULL,
    attempts stepfast_counter NOT NULL DEFAULT 0,
    reason VARCHAR(200) COLLATE "C" NOT NULL,
    detail TEXT NOT NULL,
    sent_at stepfast_instant,
    found_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    properties TEXT NOT NULL,
    body TEXT NOT NULL
) ;

CREATE UNIQUE INDEX IF NOT EXISTS stepfast_dead_message_source ON stepfast_dead_message (source);

CREATE INDEX IF NOT EXISTS stepfast_dead_message_found ON stepfast_dead_message (found_at);

-- Tasks: messages of a queue, or of TASK_DATA, that became jobs. The row has the job's id, and the webhook that reports
-- the job's end; it stays for as long as the task's id is remembered in stepfast_key.
-- digest: of the payload; a message with the same task_id and another digest is another task.
CREATE TABLE IF NOT EXISTS stepfast_task (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    client VARCHAR(128) COLLATE "C" NOT NULL,
    task_id VARCHAR(200) COLLATE "C" NOT NULL,
    task_type VARCHAR(200) COLLATE "C" NOT NULL,
    digest VARCHAR(50),
    webhook_url TEXT,
    source VARCHAR(40) NOT NULL,
    message_id VARCHAR(200) COLLATE "C",
    received_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    until_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))
) ;

CREATE INDEX IF NOT EXISTS stepfast_task_name ON stepfast_task (task_id, client);

CREATE INDEX IF NOT EXISTS stepfast_task_received ON stepfast_task (client, received_at);

CREATE INDEX IF NOT EXISTS stepfast_task_until ON stepfast_task (until_at);

-- The other side: ends of tasks that a receiver of webhooks got. Each webhook is kept once, by its id.
CREATE TABLE IF NOT EXISTS stepfast_received (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    task_id VARCHAR(200) COLLATE "C" NOT NULL,
    client VARCHAR(200) COLLATE "C" NOT NULL,
    task_type VARCHAR(200) COLLATE "C" NOT NULL,
    status VARCHAR(20) NOT NULL,
    received_at stepfast_instant NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
    body TEXT NOT NULL
) ;

CREATE INDEX IF NOT EXISTS stepfast_received_task ON stepfast_received (task_id, received_at);

CREATE INDEX IF NOT EXISTS stepfast_received_at ON stepfast_received (received_at);

-- The audit log: who did what, to what, and why. Written in the transaction of the action itself. A command that
-- works in batches has one row: each batch adds what it touched, and ended_at stays empty until the last one.
CREATE TABLE IF NOT EXISTS stepfast_audit (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    at stepfast_instant NOT NULL,
    ended_at stepfast_instant,
    who VARCHAR(200) COLLATE "C" NOT NULL,
    what VARCHAR(200) COLLATE "C" NOT NULL,
    subject VARCHAR(200) COLLATE "C" NOT NULL,
    why TEXT,
    touched stepfast_total NOT NULL,
    detail TEXT
) ;

CREATE INDEX IF NOT EXISTS stepfast_audit_at ON stepfast_audit (at, id);

CREATE INDEX IF NOT EXISTS stepfast_audit_subject ON stepfast_audit (subject, at);

-- Names of fields that applications hide, so that the command line, which loads no application, hides them too.
CREATE TABLE IF NOT EXISTS stepfast_mask (
    id VARCHAR(200) COLLATE "C" NOT NULL PRIMARY KEY,
    seen_at stepfast_instant NOT NULL
) ;

-- An id of these tables, since databases of two servers may have the same name. One row that never changes.
CREATE TABLE IF NOT EXISTS stepfast_installation (
    id INTEGER NOT NULL PRIMARY KEY,
    name VARCHAR(128) COLLATE "C" NOT NULL,
    made_at stepfast_instant NOT NULL
) ;

INSERT INTO stepfast_installation (id, name, made_at) VALUES (1, replace(CAST(gen_random_uuid() AS TEXT), '-', ''), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) ON CONFLICT DO NOTHING;

-- The names that the views of each component have here: none, default (their own), or a prefix. See `stepfast migrate --views`.
CREATE TABLE IF NOT EXISTS stepfast_view_names (
    id VARCHAR(128) COLLATE "C" NOT NULL PRIMARY KEY,
    names VARCHAR(128) COLLATE "C" NOT NULL
) ;

INSERT INTO stepfast_schema (component, version, name, applied_at) VALUES ('stepfast', 1, 'first', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT));

-- Every partition, from the moment its run is planned. One that failed or was cancelled is not completed.

CREATE VIEW partition_progress AS
SELECT CAST(p.run_id AS TEXT) AS run_id, 'partition-' || p.number AS partition_id,
       CAST(least(p.next_offset, 2147483647) AS INTEGER) AS next_offset,
       p.state IN ('done', 'done_unverified') AS completed,
       to_timestamp(p.created_at / 1000000.0) AS created_at, to_timestamp(p.updated_at / 1000000.0) AS updated_at
  FROM stepfast_partition p CROSS JOIN (SELECT 1) AS read_only
 WHERE p.state <> 'split' AND 'made by stepfast migrate: 1f419644' <> '';

-- All jobs, with the words of the operators' documents. One that is scheduled or waits for others is pending. Read-only.
-- (PostgreSQL reads nothing of a document that holds a NUL character: without a look at it first, one such
-- payload would make the whole view unreadable.)

CREATE VIEW processing_jobs AS
SELECT j.id, CAST(COALESCE(j.unique_key, j.id) AS TEXT) AS job_id, CASE WHEN position('\u0000' IN CAST(j.payload AS TEXT)) = 0 THEN j.payload ->> 'order_id' END AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' WHEN 'waiting' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CAST(CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS VARCHAR(100)) AS locked_by,
       CASE j.state WHEN 'leased' THEN to_timestamp(COALESCE(j.lease_until, w.alive_until) / 1000000.0) END AS locked_until,
       j.last_error, to_timestamp(j.created_at / 1000000.0) AS created_at,
       to_timestamp(greatest(j.updated_at, CASE j.state WHEN 'leased' THEN w.beat_at END) / 1000000.0) AS updated_at,
       CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS finished_at
  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE 'made by stepfast migrate: 5adbb627' <> ''
UNION ALL
SELECT a.id, CAST(COALESCE(a.unique_key, a.id) AS TEXT), CASE WHEN position('\u0000' IN a.payload) = 0 THEN CAST(a.payload AS JSON) ->> 'order_id' END, a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       CAST(NULL AS VARCHAR(100)), CAST(NULL AS TIMESTAMP WITH TIME ZONE),
       a.last_error, to_timestamp(a.created_at / 1000000.0), to_timestamp(a.finished_at / 1000000.0),
       to_timestamp(a.finished_at / 1000000.0)
  FROM stepfast_archive a;

-- An INSERT is refused with the table to insert into. (MariaDB has no triggers on views, and refuses it in its own words.)

CREATE OR REPLACE FUNCTION stepfast_refuse_insert() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = 'cannot insert into the view ' || TG_TABLE_NAME || '; insert the job into stepfast_job', HINT = 'INSERT INTO stepfast_job (id, kind, payload) VALUES (...)'; END$$;

DROP TRIGGER IF EXISTS stepfast_refuse_insert ON processing_jobs;

CREATE TRIGGER stepfast_refuse_insert INSTEAD OF INSERT ON processing_jobs FOR EACH ROW EXECUTE PROCEDURE stepfast_refuse_insert();

-- Runs. A worker is a partition there. One that was split is not shown: its pieces are. `partition-7` is the one with
-- number 7.
--
-- Until the plan is made at least one partition is expected; a run that ended without completing has failed at something,
-- if not at a partition. (The joined row makes PostgreSQL refuse to write through the view.)

CREATE VIEW run_metadata AS
SELECT CAST(r.id AS TEXT) AS run_id,
       CASE WHEN r.window_from IS NULL THEN 'full' ELSE 'incremental' END AS run_type,
       CASE WHEN r.state = 'planning' OR r.stalled_in = 'planning' THEN 1
            ELSE CAST((SELECT count(*) FROM stepfast_partition p WHERE p.run_id = r.id AND p.state <> 'split') AS INTEGER)
       END AS expected_workers,
       CAST((SELECT count(*) FROM stepfast_partition p
              WHERE p.run_id = r.id AND p.state IN ('done', 'done_unverified')) AS INTEGER) AS completed_workers,
       greatest(CAST((SELECT count(*) FROM stepfast_partition p
                       WHERE p.run_id = r.id AND p.state IN ('failed', 'cancelled')) AS INTEGER),
                CASE WHEN r.ended_at IS NOT NULL AND r.state <> 'completed' THEN 1 ELSE 0 END) AS failed_workers,
       to_timestamp(r.watermark_before / 1000000.0) AS watermark_before,
       to_timestamp(r.watermark_after / 1000000.0) AS watermark_after,
       to_timestamp(r.started_at / 1000000.0) AS started_at,
       CASE r.state WHEN 'completed' THEN to_timestamp(r.completed_at / 1000000.0) END AS completed_at
  FROM stepfast_run r CROSS JOIN (SELECT 1) AS read_only
 WHERE 'made by stepfast migrate: 242dc942' <> '';

-- Partitions that a worker has begun to read. The worker is the one that holds it, or committed its last page.
-- (PostgreSQL makes no jsonb of a NUL character: one such range would make the whole view unreadable.)

CREATE VIEW worker_runs AS
SELECT CAST(p.id AS TEXT) AS id, CAST(p.run_id AS TEXT) AS run_id, 'partition-' || p.number AS partition_id,
       CAST(COALESCE(CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END, p.worker_id, 'unknown') AS TEXT) AS worker_id,
       CASE WHEN p.state IN ('done', 'done_unverified') THEN 'completed'
            WHEN p.state IN ('failed', 'cancelled') THEN 'failed' ELSE 'running' END AS status,
       CAST(least(p.seen, 2147483647) AS INTEGER) AS records_processed,
       CASE WHEN p.state IN ('ready', 'running') THEN CASE WHEN j.failures + j.crashes > 0 THEN j.last_error
                                                           WHEN p.troubled_at >= p.updated_at THEN p.last_error END
            WHEN p.state = 'cancelled' THEN COALESCE(p.last_error, 'cancelled')
            WHEN p.state <> 'done' THEN p.last_error END AS error_message,
       CASE WHEN position('\u0000' IN p.span) = 0 THEN
            jsonb_build_object('range', CAST(p.span AS JSONB), 'window', jsonb_build_object(
                'from', to_char(to_timestamp(p.window_from / 1000000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                'to', to_char(to_timestamp(p.window_to / 1000000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
       END AS work_item_payload,
       to_timestamp(COALESCE(p.started_at, j.leased_at, p.created_at) / 1000000.0) AS started_at,
       CASE WHEN p.state NOT IN ('ready', 'running') THEN to_timestamp(p.ended_at / 1000000.0) END AS completed_at
  FROM stepfast_partition p LEFT JOIN stepfast_job j ON j.id = p.job_id LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE p.state <> 'split' AND (p.state <> 'ready' OR p.started_at IS NOT NULL OR j.state = 'leased') AND 'made by stepfast migrate: 8db68990' <> '';

INSERT INTO stepfast_view_names (id, names) VALUES ('stepfast', 'default');
