-- admin.actions.STATE
SELECT state, queue FROM holdfast_job WHERE id = :id
UNION ALL SELECT state, queue FROM holdfast_archive WHERE id = :id

-- admin.actions.CANCEL_WAITING
UPDATE holdfast_job SET fence = :fence, error_group = :error_group, last_error = :reason, updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id = :id AND state IN ('scheduled', 'ready', 'suspect')

-- admin.actions.ASK_TO_STOP
UPDATE holdfast_job SET cancel_at = COALESCE(cancel_at, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)), updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) WHERE id = :id AND state = 'leased'

-- admin.actions.NOTE
INSERT INTO holdfast_log (job_id, at, level, step, message)
SELECT id, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), 'warning', step, :message FROM holdfast_job WHERE id = :id

-- admin.actions.HASTEN
UPDATE holdfast_job SET state = 'ready', ready_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) WHERE id = :id AND state = 'scheduled'

-- admin.actions.KNOW_QUEUE
INSERT INTO holdfast_queue (id) VALUES (:id) ON CONFLICT DO NOTHING

-- admin.actions.PAUSE
UPDATE holdfast_queue SET paused_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), note = :note WHERE id = :id AND paused_at IS NULL

-- admin.actions.REMARK
UPDATE holdfast_queue SET note = :note WHERE id = :id AND paused_at IS NOT NULL

-- admin.actions.RESUME
UPDATE holdfast_queue SET paused_at = NULL, note = NULL WHERE id = :id AND paused_at IS NOT NULL

-- admin.actions.ENDED_STATE
SELECT state FROM holdfast_archive WHERE id = :id

-- admin.doctor.facts.OVERDUE
SELECT count(*), COALESCE(max(CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) - ready_at), 0) FROM holdfast_job WHERE state = 'scheduled' AND ready_at <= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)

-- admin.doctor.facts.SUSPECTS
SELECT COALESCE(max(CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) - ready_at), 0) FROM holdfast_job WHERE state = 'suspect'

-- admin.doctor.facts.UNKNOWN_KINDS
SELECT kind, count(*) FROM holdfast_job
 WHERE state IN ('ready', 'scheduled') AND error_group LIKE 'UnknownKindError%' GROUP BY kind ORDER BY kind

-- admin.doctor.mariadb.VERSION
SELECT version()

-- admin.doctor.mariadb.VARIABLES
SHOW GLOBAL VARIABLES WHERE variable_name IN ('innodb_flush_log_at_trx_commit', 'max_connections', 'read_only',
                                              'sql_mode', 'max_allowed_packet')

-- admin.doctor.mariadb.ISOLATION
SHOW SESSION VARIABLES WHERE variable_name IN ('tx_isolation', 'transaction_isolation')

-- admin.doctor.mariadb.CONNECTED
SHOW GLOBAL STATUS LIKE 'Threads_connected'

-- admin.doctor.mariadb.SESSIONS
SELECT t.trx_mysql_thread_id, p.user, p.host, p.command, TIMESTAMPDIFF(SECOND, t.trx_started, NOW()),
       COALESCE(t.trx_query, p.info, ''), t.trx_rows_locked + t.trx_rows_modified
  FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
 WHERE p.db = database() AND p.id <> connection_id() AND TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) >= :age
 ORDER BY t.trx_started

-- admin.doctor.mariadb.BLOCKERS
SELECT t.trx_mysql_thread_id, count(*)
  FROM information_schema.innodb_lock_waits w
  JOIN information_schema.innodb_locks l ON l.lock_id = w.blocking_lock_id
  JOIN information_schema.innodb_trx t ON t.trx_id = w.blocking_trx_id
 WHERE l.lock_table LIKE '%`holdfast%'
 GROUP BY t.trx_mysql_thread_id

-- admin.doctor.postgresql.SETTINGS
SELECT current_setting('server_version'), CAST(current_setting('server_version_num') AS INTEGER),
       current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
       current_setting('autovacuum'), pg_is_in_recovery()

-- admin.doctor.postgresql.CONNECTIONS
SELECT count(*), CAST(current_setting('max_connections') AS INTEGER)
  FROM pg_stat_activity WHERE backend_type = 'client backend'

-- admin.doctor.postgresql.SESSIONS
SELECT a.pid, COALESCE(a.usename, '?'), COALESCE(a.application_name, ''), COALESCE(a.state, ''),
       CAST(extract(epoch FROM clock_timestamp() - a.xact_start) AS DOUBLE PRECISION), COALESCE(a.query, ''),
       EXISTS (SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                WHERE l.pid = a.pid AND l.granted AND l.mode <> 'AccessShareLock' AND l.database = a.datid
                  AND c.relname LIKE 'holdfast%'),
       a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL,
       (SELECT count(*) FROM pg_stat_activity w WHERE a.pid = ANY(pg_blocking_pids(w.pid)))
  FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
   AND a.xact_start < clock_timestamp() - CAST(:age AS INTEGER) * interval '1 second'
 ORDER BY a.xact_start

-- admin.doctor.postgresql.PREPARED
SELECT gid, owner, CAST(extract(epoch FROM clock_timestamp() - prepared) AS DOUBLE PRECISION)
  FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared

-- admin.doctor.postgresql.DEAD_ROWS
SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
 WHERE relname LIKE 'holdfast%' AND n_dead_tup > :most AND n_dead_tup > 2 * n_live_tup
 ORDER BY n_dead_tup DESC

-- admin.doctor.sqlite.VERSION
SELECT sqlite_version()

-- admin.doctor.sqlite.JOURNAL
PRAGMA journal_mode

-- admin.doctor.sqlite.SYNCHRONOUS
PRAGMA synchronous

-- admin.reports.dead_letters.NEWEST
   SELECT 
   id, state, kind, queue, priority, unique_key, step,
   failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, failures, crashes, progress, progress_note,
   created_at, ready_at, leased_at, finished_at, NULL, NULL, NULL, error_group, last_error
FROM holdfast_archive
    WHERE state = 'dead' AND (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue)
      AND (:any_error = 1 OR error_group = :error_group)
    ORDER BY finished_at DESC, id DESC LIMIT :limit

-- admin.reports.jobs.LIST_LIVE
SELECT 
j.id, j.state, j.kind, j.queue, j.priority, j.unique_key, j.step,
j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END, j.failures, j.crashes, j.progress, j.progress_note,
j.created_at, j.ready_at, j.leased_at, NULL,
CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END,
CASE j.state WHEN 'leased' THEN COALESCE(j.lease_until, w.alive_until) END,
j.cancel_at, j.error_group, j.last_error

  FROM holdfast_job j LEFT JOIN holdfast_worker w ON w.incarnation = j.owner
 WHERE j.state IN (SELECT value FROM json_each(:states)) AND 
(:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue) AND (:any_id = 1 OR id < :before)

 ORDER BY j.id DESC LIMIT :limit

-- admin.reports.jobs.LIST_ENDED
   SELECT 
   id, state, kind, queue, priority, unique_key, step,
   failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, failures, crashes, progress, progress_note,
   created_at, ready_at, leased_at, finished_at, NULL, NULL, NULL, error_group, last_error
FROM holdfast_archive
    WHERE state IN (SELECT value FROM json_each(:states)) AND 
   (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue) AND (:any_id = 1 OR id < :before)

    ORDER BY id DESC LIMIT :limit

-- admin.reports.jobs.SHOW_LIVE
    SELECT 
    j.id, j.state, j.kind, j.queue, j.priority, j.unique_key, j.step,
    j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END, j.failures, j.crashes, j.progress, j.progress_note,
    j.created_at, j.ready_at, j.leased_at, NULL,
    CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END,
    CASE j.state WHEN 'leased' THEN COALESCE(j.lease_until, w.alive_until) END,
    j.cancel_at, j.error_group, j.last_error
, j.payload, j.cursor_json, NULL
      FROM holdfast_job j LEFT JOIN holdfast_worker w ON w.incarnation = j.owner
     WHERE j.id = :id

-- admin.reports.jobs.SHOW_ENDED
SELECT 
    id, state, kind, queue, priority, unique_key, step,
    failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, failures, crashes, progress, progress_note,
    created_at, ready_at, leased_at, finished_at, NULL, NULL, NULL, error_group, last_error
, payload, cursor_json, result FROM holdfast_archive WHERE id = :id

-- admin.reports.jobs.LOGS
SELECT at, level, step, message FROM holdfast_log WHERE job_id = :id ORDER BY id DESC LIMIT :limit

-- admin.reports.leases.LEASES
    SELECT j.id, j.kind, j.queue, j.step, j.failures + j.crashes + 1, j.progress, COALESCE(j.leased_by, w.worker_id),
           CASE WHEN j.owner <> :manual THEN j.owner END, j.leased_at, COALESCE(j.lease_until, w.alive_until), 
    CASE WHEN j.owner = :manual THEN CASE WHEN j.lease_until < CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) THEN 0 ELSE 1 END
, j.cancel_at
      FROM holdfast_job j LEFT JOIN holdfast_worker w ON w.incarnation = j.owner
     WHERE j.state = 'leased' AND (:all_of_them = 1 OR 
    CASE WHEN j.owner = :manual THEN CASE WHEN j.lease_until < CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) THEN 0 ELSE 1 END
 = :expired)
     ORDER BY j.leased_at, j.id LIMIT :limit

-- admin.reports.leases.COUNT
    SELECT COALESCE(sum(1 - 
    CASE WHEN j.owner = :manual THEN CASE WHEN j.lease_until < CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) THEN 0 ELSE 1 END
), 0), COALESCE(sum(
    CASE WHEN j.owner = :manual THEN CASE WHEN j.lease_until < CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) THEN 0 ELSE 1 END
), 0)
      FROM holdfast_job j LEFT JOIN holdfast_worker w ON w.incarnation = j.owner
     WHERE j.state = 'leased'

-- admin.reports.queues.LIVE
SELECT queue, state, count(*), min(ready_at) FROM holdfast_job GROUP BY queue, state

-- admin.reports.queues.DEAD
SELECT queue, 'dead', count(*), NULL FROM holdfast_archive WHERE state = 'dead' GROUP BY queue

-- admin.reports.queues.USED
SELECT 1 WHERE EXISTS (SELECT 1 FROM holdfast_job WHERE queue = :queue)
            OR EXISTS (SELECT 1 FROM holdfast_archive WHERE queue = :queue)

-- admin.reports.queues.QUEUES
SELECT id, paused_at, note FROM holdfast_queue

-- admin.reports.statistics.ENDED
SELECT kind, state, count(*), avg(finished_at - leased_at), max(finished_at - leased_at), avg(leased_at - ready_at)
  FROM holdfast_archive
 WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) - :span
 GROUP BY kind, state ORDER BY kind

-- admin.reports.workers.WORKERS
SELECT worker_id, CASE WHEN state = 'alive' AND alive_until >= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) THEN 1 ELSE 0 END, state, host, pid, incarnation,
       queues, concurrency, active, COALESCE(active_ids, ''), lease, started_at, beat_at, alive_until, ended_at
  FROM holdfast_worker
 WHERE state = 'alive' OR :everyone = 1
 ORDER BY started_at, incarnation

-- admin.rows.NOW
SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)

-- database.migrate.SCHEMA_TABLE
CREATE TABLE IF NOT EXISTS holdfast_schema (
    version INTEGER NOT NULL PRIMARY KEY,
    name VARCHAR(100) NOT NULL,
    applied_at BIGINT NOT NULL
)

-- database.migrate.VERSION
SELECT max(version) FROM holdfast_schema

-- database.migrate.RECORD
INSERT INTO holdfast_schema (version, name, applied_at) VALUES (:version, :name, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER))

-- database.wakeup.NOTIFY
SELECT pg_notify('holdfast', :queue)

-- steps.acknowledge.MOVE
-- (done by the statement before it)

-- steps.acknowledge.MOVE_WITH_RESULTS
-- (done by the statement before it)

-- steps.acknowledge.MOVE_ONE
INSERT INTO holdfast_archive (id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, progress, progress_note, error_group, last_error, cursor_json, committed_fence, payload, result, state, finished_at)
SELECT id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, progress, progress_note, error_group, last_error, cursor_json, fence, payload, :result, 'done', CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) FROM holdfast_job WHERE id = :id AND fence = :fence
ON CONFLICT DO NOTHING

-- steps.acknowledge.REMOVE_ONE
DELETE FROM holdfast_job WHERE id = :id AND fence = :fence

-- steps.acknowledge.LOCK_MANY
SELECT id FROM holdfast_job
 WHERE id IN (SELECT value FROM json_each(:ids)) AND fence = :fence
 ORDER BY id

-- steps.acknowledge.KEEP_RESULT
UPDATE holdfast_archive SET result = :result WHERE id = :id AND committed_fence = :fence

-- steps.archive.ARCHIVE
INSERT INTO holdfast_archive (id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, progress, progress_note, error_group, last_error, cursor_json, committed_fence, payload, state, finished_at)
SELECT id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, progress, progress_note, error_group, last_error, cursor_json, fence, payload, :state, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
  FROM holdfast_job WHERE id IN (SELECT value FROM json_each(:ids))
ON CONFLICT DO NOTHING

-- steps.archive.REMOVE
DELETE FROM holdfast_job WHERE id IN (SELECT value FROM json_each(:ids))

-- steps.commit.LOCK
SELECT id FROM holdfast_job WHERE id = :id AND fence = :fence

-- steps.commit.CONTINUE
UPDATE holdfast_job
   SET state = CASE WHEN :delay > 0 THEN 'scheduled' ELSE 'ready' END, ready_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :delay,
       owner = NULL, leased_by = NULL, lease_until = NULL, cursor_json = :cursor, step = step + 1,
       failures = 0, crashes = 0, error_group = NULL,
       fence = :new_fence, committed_fence = :fence, updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id = :id AND fence = :fence AND cancel_at IS NULL

-- steps.commit.STEP_ON
UPDATE holdfast_job
   SET cursor_json = :cursor, step = step + 1, failures = 0, crashes = 0, updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id = :id AND fence = :fence

-- steps.commit.CONTINUE_HERE
UPDATE holdfast_job
   SET cursor_json = :cursor, step = step + 1, failures = 0, crashes = 0, error_group = NULL,
       ready_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), leased_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), fence = :new_fence, committed_fence = :fence, updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id = :id AND fence = :fence AND cancel_at IS NULL

-- steps.commit.MORE_URGENT
SELECT 1 WHERE EXISTS (SELECT 1 FROM holdfast_queue WHERE id = :queue AND paused_at IS NOT NULL)
            OR EXISTS (SELECT 1 FROM holdfast_job WHERE queue = :queue AND state = 'ready' AND priority > :priority)

-- steps.commit.PUT_BACK
UPDATE holdfast_job
   SET state = CASE WHEN :delay > 0 THEN 'scheduled' ELSE 'ready' END, ready_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :delay,
       owner = NULL, leased_by = NULL, lease_until = NULL,
       fence = :new_fence, committed_fence = :fence, updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id = :id AND fence = :fence AND cancel_at IS NULL

-- steps.commit.RETRY
UPDATE holdfast_job
   SET state = CASE WHEN :delay > 0 THEN 'scheduled' ELSE 'ready' END, ready_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :delay,
       owner = NULL, leased_by = NULL, lease_until = NULL, failures = failures + :charge,
       last_error = :error,
       error_group = CASE WHEN :charge = 0 AND error_group = 'Lease expired - worker crashed or timed out' THEN error_group ELSE :error_group END,
       fence = :new_fence, committed_fence = :fence, updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id = :id AND fence = :fence AND cancel_at IS NULL

-- steps.commit.BLAME
UPDATE holdfast_job
   SET failures = failures + :charge, last_error = :error, error_group = :error_group, updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id = :id AND fence = :fence

-- steps.commit.GIVE_BACK
UPDATE holdfast_job
   SET state = CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END,
       owner = NULL, leased_by = NULL, lease_until = NULL,
       fence = :new_fence, committed_fence = :fence, updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id IN (SELECT value FROM json_each(:ids)) AND fence = :fence AND cancel_at IS NULL

-- steps.commit.ASKED_TO_STOP
SELECT id FROM holdfast_job
 WHERE id IN (SELECT value FROM json_each(:ids)) AND fence = :fence AND cancel_at IS NOT NULL
 ORDER BY id

-- steps.dead_letters.CHOOSE
SELECT id, queue, finished_at FROM holdfast_archive
 WHERE state = 'dead' AND (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue)
   AND (:any_error = 1 OR error_group = :error_group)
   AND finished_at BETWEEN :after AND :until AND (finished_at > :after OR id > :after_id)
 ORDER BY finished_at, id LIMIT :limit

-- steps.dead_letters.COUNT
SELECT count(*) FROM holdfast_archive
 WHERE state = 'dead' AND (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue)
   AND (:any_error = 1 OR error_group = :error_group) AND finished_at <= :until

-- steps.dead_letters.LOCK_ENDED
SELECT state, queue, unique_key FROM holdfast_archive WHERE id = :id

-- steps.dead_letters.HOLDER
SELECT id FROM holdfast_job WHERE unique_key = :key

-- steps.dead_letters.REVIVE
INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key,
                          step, failures, crashes, fence, progress, progress_note, last_error, error_group, cursor_json, payload)
SELECT id, queue, kind, CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END, priority, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), created_at, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), unique_key,
       step, 0, 0, :fence, progress, progress_note, last_error, error_group, cursor_json, payload
  FROM holdfast_archive WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN ('dead', 'cancelled')
 ORDER BY finished_at, id
ON CONFLICT DO NOTHING

-- steps.dead_letters.LEAVE
DELETE FROM holdfast_archive
 WHERE id IN (SELECT value FROM json_each(:ids))
   AND EXISTS (SELECT 1 FROM holdfast_job WHERE holdfast_job.id = holdfast_archive.id AND fence = :fence)

-- steps.dead_letters.FORGET
DELETE FROM holdfast_archive WHERE id IN (SELECT value FROM json_each(:ids))

-- steps.dead_letters.FORGET_LOGS
DELETE FROM holdfast_log WHERE job_id IN (SELECT value FROM json_each(:ids))

-- steps.dead_letters.GROUPS
SELECT kind, COALESCE(error_group, ''), count(*), min(finished_at), max(finished_at), max(id)
  FROM holdfast_archive
 WHERE state = 'dead' AND (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue)
   AND (:any_error = 1 OR error_group = :error_group)
 GROUP BY kind, error_group ORDER BY count(*) DESC, kind, max(id) LIMIT :limit

-- steps.enqueue.ENQUEUE
INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, payload)
VALUES (:id, :queue, :kind, :state, :priority, COALESCE(:run_at, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :delay), CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), :key, :payload)
ON CONFLICT DO NOTHING

-- steps.enqueue.ENQUEUE_MANY
   INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, payload)
   SELECT json_extract(value, '$[0]'), :queue, :kind, :state, :priority, COALESCE(:run_at, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :delay), CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), json_extract(value, '$[1]'), json_extract(value, '$[2]')
     FROM json_each(:rows) WHERE true
ON CONFLICT DO NOTHING

-- steps.enqueue.ENQUEUE_KEYLESS
-- (done by the statement before it)

-- steps.enqueue.HOLDERS
SELECT unique_key, id FROM holdfast_job WHERE unique_key IN (SELECT value FROM json_each(:keys))

-- steps.enqueue.REPLACE
UPDATE holdfast_job
   SET queue = :queue, kind = :kind, payload = :payload, priority = :priority, state = :state,
       ready_at = COALESCE(:run_at, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :delay), updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), fence = :fence, committed_fence = NULL,
       owner = NULL, leased_by = NULL, lease_until = NULL, cancel_at = NULL,
       step = step + 1, failures = 0, crashes = 0, cursor_json = NULL, progress = 0, progress_note = NULL,
       last_error = NULL, error_group = NULL
 WHERE unique_key = :key AND state IN ('scheduled', 'ready', 'suspect', 'leased')

-- steps.enqueue.KNOWN
SELECT id FROM holdfast_job WHERE id = :id UNION ALL SELECT id FROM holdfast_archive WHERE id = :id

-- steps.fate.LIVE_FENCES
SELECT id, fence, COALESCE(committed_fence, 0) FROM holdfast_job WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id

-- steps.fate.ARCHIVED_FENCES
SELECT id, COALESCE(committed_fence, 0) FROM holdfast_archive WHERE id IN (SELECT value FROM json_each(:ids))

-- steps.keys.REMEMBER
INSERT INTO holdfast_key (id, job_id, until_at) VALUES (:id, :job_id, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :keep)
ON CONFLICT DO NOTHING

-- steps.keys.TAKE_OVER
UPDATE holdfast_key SET job_id = :job_id, until_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :keep
 WHERE id = :id AND job_id <> :job_id AND until_at <= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)

-- steps.keys.HOLDER
SELECT job_id FROM holdfast_key WHERE id = :id

-- steps.keys.HAND_OVER
UPDATE holdfast_key SET job_id = :holder WHERE id = :id AND job_id = :job_id

-- steps.keys.LET_GO
DELETE FROM holdfast_key WHERE id = :id AND job_id = :job_id

-- steps.keys.FORGET
DELETE FROM holdfast_key WHERE id IN (SELECT value FROM json_each(:ids))

-- steps.keys.EXPIRED
SELECT id FROM holdfast_key WHERE until_at <= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) ORDER BY until_at LIMIT :limit

-- steps.lease.PICK
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, payload
  FROM holdfast_job 
 WHERE queue = :queue AND state = 'ready'  AND ready_at <= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
   AND NOT EXISTS (SELECT 1 FROM holdfast_queue WHERE id = :queue AND paused_at IS NOT NULL)
 ORDER BY priority DESC, ready_at, id
 LIMIT :limit

-- steps.lease.PICK_FROM_HINT
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, payload
  FROM holdfast_job 
 WHERE queue = :queue AND state = 'ready' AND priority = :priority AND ready_at >= :hint AND ready_at <= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
   AND NOT EXISTS (SELECT 1 FROM holdfast_queue WHERE id = :queue AND paused_at IS NOT NULL)
 ORDER BY ready_at, id
 LIMIT :limit

-- steps.lease.TAKE
UPDATE holdfast_job
   SET state = 'leased', owner = :owner, fence = :fence, leased_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'ready'

-- steps.lease.SUSPECT
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, payload
  FROM holdfast_job
 WHERE state = 'suspect' AND (:anywhere = 1 OR queue IN (SELECT value FROM json_each(:queues)))
   AND queue NOT IN (SELECT id FROM holdfast_queue WHERE paused_at IS NOT NULL)
 ORDER BY ready_at
 LIMIT 1

-- steps.lease.TAKE_SUSPECT
UPDATE holdfast_job
   SET state = 'leased', owner = :owner, fence = :fence, leased_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id = :id AND state = 'suspect'

-- steps.manual.PICK_ONE
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, payload
  FROM holdfast_job 
 WHERE queue = :queue AND state = 'ready' AND ready_at <= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
   AND NOT EXISTS (SELECT 1 FROM holdfast_queue WHERE id = :queue AND paused_at IS NOT NULL)
 ORDER BY priority DESC, ready_at, id
 LIMIT 1

-- steps.manual.HOLD
UPDATE holdfast_job
   SET state = 'leased', owner = :owner, fence = :fence, leased_by = :worker_id,
       leased_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), lease_until = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :duration, updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id = :id AND state = 'ready'

-- steps.manual.EXTEND
UPDATE holdfast_job SET lease_until = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :duration, updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id = :id AND fence = :fence AND owner = :owner

-- steps.manual.UNTIL
SELECT lease_until FROM holdfast_job WHERE id = :id

-- steps.reports.PROGRESS
UPDATE holdfast_job
   SET progress = COALESCE(:percent, progress), progress_note = COALESCE(:note, progress_note), updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id = :id AND fence = :fence

-- steps.reports.LOG
INSERT INTO holdfast_log (job_id, at, level, step, message)
SELECT id, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), :level, step, :message FROM holdfast_job
 WHERE id = :id AND fence = :fence

-- steps.rescue.ALIVE
SELECT incarnation, worker_id, process, CASE WHEN alive_until < CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) THEN 1 ELSE 0 END
  FROM holdfast_worker WHERE state = 'alive' AND incarnation <> :me

-- steps.rescue.LATE
SELECT incarnation, alive_until FROM holdfast_worker
 WHERE state = 'alive' AND incarnation <> :me AND alive_until < CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)

-- steps.rescue.DECLARE_DEAD
UPDATE holdfast_worker
   SET state = 'dead', ended_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER),
       abandoned = (SELECT count(*) FROM holdfast_job WHERE owner = :incarnation AND state = 'leased')
 WHERE incarnation = :incarnation AND state = 'alive' AND (alive_until < CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) OR :proven = 1)

-- steps.rescue.LEFT_BEHIND
SELECT w.incarnation, w.worker_id, w.state, COALESCE(w.abandoned, 0)
  FROM holdfast_worker w
 WHERE w.state IN ('dead', 'stopped')
   AND EXISTS (SELECT 1 FROM holdfast_job j WHERE j.owner = w.incarnation AND j.state = 'leased')
 LIMIT :limit

-- steps.rescue.ABANDONED
SELECT id, crashes, cancel_at FROM holdfast_job
 WHERE owner = :owner AND state = 'leased'
 LIMIT :limit

-- steps.rescue.EXPIRED_BY_HAND
SELECT id, crashes, cancel_at FROM holdfast_job
 WHERE owner = :owner AND state = 'leased' AND lease_until < CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 LIMIT :limit

-- steps.rescue.ORPHANED
SELECT id, crashes, cancel_at FROM holdfast_job
 WHERE owner > :owner AND state = 'leased'
   AND NOT EXISTS (SELECT 1 FROM holdfast_worker WHERE incarnation = owner)
 LIMIT :limit

-- steps.rescue.CHARGED
UPDATE holdfast_worker SET abandoned = 0 WHERE incarnation = :incarnation AND state = 'dead'

-- steps.rescue.SUSPECT
UPDATE holdfast_job
   SET state = :state, owner = NULL, leased_by = NULL, lease_until = NULL, fence = :fence,
       crashes = crashes + :charge, ready_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), error_group = :error_group,
       last_error = CASE WHEN last_error IS NULL THEN :note WHEN length(last_error) > 3500 THEN last_error
                         ELSE last_error || '; ' || :note END
 WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'leased'

-- worker.claimer.QUEUES_WITH_WORK
WITH RECURSIVE named (queue) AS (
    SELECT min(queue) FROM holdfast_job WHERE state = 'ready'
    UNION ALL
    SELECT (SELECT min(j.queue) FROM holdfast_job j WHERE j.state = 'ready' AND j.queue > named.queue)
      FROM named WHERE named.queue IS NOT NULL
)
SELECT queue FROM named
 WHERE queue IS NOT NULL AND queue NOT IN (SELECT id FROM holdfast_queue WHERE paused_at IS NOT NULL)

-- worker.incarnation.REGISTER
INSERT INTO holdfast_worker (incarnation, worker_id, state, alive_until, lease, started_at, beat_at,
                             process, host, pid, concurrency, queues)
VALUES (:incarnation, :worker_id, 'alive', CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :lease, :lease, CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER),
        :process, :host, :pid, :concurrency, :queues)

-- worker.incarnation.STAY_ALIVE
UPDATE holdfast_worker
   SET alive_until = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) + :lease, beat_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), active = :active, active_ids = :active_ids
 WHERE incarnation = :incarnation AND state = 'alive'

-- worker.incarnation.RESIGN
UPDATE holdfast_worker SET state = 'stopped', ended_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER), active = 0, active_ids = NULL
 WHERE incarnation = :incarnation AND state = 'alive'

-- worker.incarnation.CLOCK
SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)

-- worker.incarnation.STILL_MINE
SELECT id, fence, cancel_at FROM holdfast_job WHERE id IN (SELECT value FROM json_each(:ids))

-- worker.maintenance.DUE
SELECT id, queue FROM holdfast_job WHERE state = 'scheduled' AND ready_at <= CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 ORDER BY ready_at LIMIT :limit

-- worker.maintenance.PROMOTE
UPDATE holdfast_job
   SET state = CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END, updated_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)
 WHERE id IN (SELECT value FROM json_each(:ids))

-- worker.maintenance.NEXT_DUE
SELECT min(ready_at) - CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) FROM holdfast_job WHERE state = 'scheduled'

-- worker.maintenance.OLD
SELECT id FROM holdfast_archive WHERE state = :state AND finished_at < CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) - :age
 ORDER BY finished_at LIMIT :limit

-- worker.maintenance.GONE_WORKERS
DELETE FROM holdfast_worker
 WHERE state IN ('dead', 'stopped') AND ended_at < CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) - :age
   AND NOT EXISTS (SELECT 1 FROM holdfast_job WHERE owner = holdfast_worker.incarnation AND state = 'leased')

-- worker.maintenance.LONG_MINE
SELECT id, fence FROM holdfast_job
 WHERE owner = :owner AND state = 'leased' AND leased_at < CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER) - :age LIMIT :limit

-- worker.maintenance.SUSPECTS
SELECT count(*) FROM holdfast_job
 WHERE state = 'suspect' AND (:anywhere = 1 OR queue IN (SELECT value FROM json_each(:queues)))
   AND queue NOT IN (SELECT id FROM holdfast_queue WHERE paused_at IS NOT NULL)
