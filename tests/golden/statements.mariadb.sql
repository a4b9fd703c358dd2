-- admin.actions.STATE
SELECT state, queue FROM holdfast_job WHERE id = %(id)s
UNION ALL SELECT state, queue FROM holdfast_archive WHERE id = %(id)s

-- admin.actions.CANCEL_WAITING
UPDATE holdfast_job SET fence = %(fence)s, error_group = %(error_group)s, last_error = %(reason)s, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND state IN ('scheduled', 'ready', 'suspect')

-- admin.actions.ASK_TO_STOP
UPDATE holdfast_job SET cancel_at = COALESCE(cancel_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))), updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) WHERE id = %(id)s AND state = 'leased'

-- admin.actions.NOTE
INSERT INTO holdfast_log (job_id, at, level, step, message)
SELECT id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 'warning', step, %(message)s FROM holdfast_job WHERE id = %(id)s

-- admin.actions.HASTEN
UPDATE holdfast_job SET state = 'ready', ready_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) WHERE id = %(id)s AND state = 'scheduled'

-- admin.actions.KNOW_QUEUE
INSERT INTO holdfast_queue (id) VALUES (%(id)s) ON DUPLICATE KEY UPDATE id = id

-- admin.actions.PAUSE
UPDATE holdfast_queue SET paused_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), note = %(note)s WHERE id = %(id)s AND paused_at IS NULL

-- admin.actions.REMARK
UPDATE holdfast_queue SET note = %(note)s WHERE id = %(id)s AND paused_at IS NOT NULL

-- admin.actions.RESUME
UPDATE holdfast_queue SET paused_at = NULL, note = NULL WHERE id = %(id)s AND paused_at IS NOT NULL

-- admin.actions.ENDED_STATE
SELECT state FROM holdfast_archive WHERE id = %(id)s FOR UPDATE

-- admin.doctor.facts.OVERDUE
SELECT count(*), COALESCE(max(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - ready_at), 0) FROM holdfast_job WHERE state = 'scheduled' AND ready_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- admin.doctor.facts.SUSPECTS
SELECT COALESCE(max(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - ready_at), 0) FROM holdfast_job WHERE state = 'suspect'

-- admin.doctor.facts.UNKNOWN_KINDS
SELECT kind, count(*) FROM holdfast_job
 WHERE state IN ('ready', 'scheduled') AND error_group LIKE 'UnknownKindError%%' GROUP BY kind ORDER BY kind

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
 WHERE p.db = database() AND p.id <> connection_id() AND TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) >= %(age)s
 ORDER BY t.trx_started

-- admin.doctor.mariadb.BLOCKERS
SELECT t.trx_mysql_thread_id, count(*)
  FROM information_schema.innodb_lock_waits w
  JOIN information_schema.innodb_locks l ON l.lock_id = w.blocking_lock_id
  JOIN information_schema.innodb_trx t ON t.trx_id = w.blocking_trx_id
 WHERE l.lock_table LIKE '%%`holdfast%%'
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
                  AND c.relname LIKE 'holdfast%%'),
       a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL,
       (SELECT count(*) FROM pg_stat_activity w WHERE a.pid = ANY(pg_blocking_pids(w.pid)))
  FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
   AND a.xact_start < clock_timestamp() - CAST(%(age)s AS INTEGER) * interval '1 second'
 ORDER BY a.xact_start

-- admin.doctor.postgresql.PREPARED
SELECT gid, owner, CAST(extract(epoch FROM clock_timestamp() - prepared) AS DOUBLE PRECISION)
  FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared

-- admin.doctor.postgresql.DEAD_ROWS
SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
 WHERE relname LIKE 'holdfast%%' AND n_dead_tup > %(most)s AND n_dead_tup > 2 * n_live_tup
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
    WHERE state = 'dead' AND (%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
      AND (%(any_error)s = 1 OR error_group = %(error_group)s)
    ORDER BY finished_at DESC, id DESC LIMIT %(limit)s

-- admin.reports.jobs.LIST_LIVE
SELECT 
j.id, j.state, j.kind, j.queue, j.priority, j.unique_key, j.step,
j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END, j.failures, j.crashes, j.progress, j.progress_note,
j.created_at, j.ready_at, j.leased_at, NULL,
CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END,
CASE j.state WHEN 'leased' THEN COALESCE(j.lease_until, w.alive_until) END,
j.cancel_at, j.error_group, j.last_error

  FROM holdfast_job j LEFT JOIN holdfast_worker w ON w.incarnation = j.owner
 WHERE j.state IN %(states)s AND 
(%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s) AND (%(any_id)s = 1 OR id < %(before)s)

 ORDER BY j.id DESC LIMIT %(limit)s

-- admin.reports.jobs.LIST_ENDED
   SELECT 
   id, state, kind, queue, priority, unique_key, step,
   failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, failures, crashes, progress, progress_note,
   created_at, ready_at, leased_at, finished_at, NULL, NULL, NULL, error_group, last_error
FROM holdfast_archive
    WHERE state IN %(states)s AND 
   (%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s) AND (%(any_id)s = 1 OR id < %(before)s)

    ORDER BY id DESC LIMIT %(limit)s

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
     WHERE j.id = %(id)s

-- admin.reports.jobs.SHOW_ENDED
SELECT 
    id, state, kind, queue, priority, unique_key, step,
    failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, failures, crashes, progress, progress_note,
    created_at, ready_at, leased_at, finished_at, NULL, NULL, NULL, error_group, last_error
, payload, cursor_json, result FROM holdfast_archive WHERE id = %(id)s

-- admin.reports.jobs.LOGS
SELECT at, level, step, message FROM holdfast_log WHERE job_id = %(id)s ORDER BY id DESC LIMIT %(limit)s

-- admin.reports.leases.LEASES
    SELECT j.id, j.kind, j.queue, j.step, j.failures + j.crashes + 1, j.progress, COALESCE(j.leased_by, w.worker_id),
           CASE WHEN j.owner <> %(manual)s THEN j.owner END, j.leased_at, COALESCE(j.lease_until, w.alive_until), 
    CASE WHEN j.owner = %(manual)s THEN CASE WHEN j.lease_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 0 ELSE 1 END
, j.cancel_at
      FROM holdfast_job j LEFT JOIN holdfast_worker w ON w.incarnation = j.owner
     WHERE j.state = 'leased' AND (%(all_of_them)s = 1 OR 
    CASE WHEN j.owner = %(manual)s THEN CASE WHEN j.lease_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 0 ELSE 1 END
 = %(expired)s)
     ORDER BY j.leased_at, j.id LIMIT %(limit)s

-- admin.reports.leases.COUNT
    SELECT COALESCE(sum(1 - 
    CASE WHEN j.owner = %(manual)s THEN CASE WHEN j.lease_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 0 ELSE 1 END
), 0), COALESCE(sum(
    CASE WHEN j.owner = %(manual)s THEN CASE WHEN j.lease_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 0 ELSE 1 END
), 0)
      FROM holdfast_job j LEFT JOIN holdfast_worker w ON w.incarnation = j.owner
     WHERE j.state = 'leased'

-- admin.reports.queues.LIVE
SELECT queue, state, count(*), min(ready_at) FROM holdfast_job GROUP BY queue, state

-- admin.reports.queues.DEAD
SELECT queue, 'dead', count(*), NULL FROM holdfast_archive WHERE state = 'dead' GROUP BY queue

-- admin.reports.queues.USED
SELECT 1 WHERE EXISTS (SELECT 1 FROM holdfast_job WHERE queue = %(queue)s)
            OR EXISTS (SELECT 1 FROM holdfast_archive WHERE queue = %(queue)s)

-- admin.reports.queues.QUEUES
SELECT id, paused_at, note FROM holdfast_queue

-- admin.reports.statistics.ENDED
SELECT kind, state, count(*), avg(finished_at - leased_at), max(finished_at - leased_at), avg(leased_at - ready_at)
  FROM holdfast_archive
 WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(span)s
 GROUP BY kind, state ORDER BY kind

-- admin.reports.workers.WORKERS
SELECT worker_id, CASE WHEN state = 'alive' AND alive_until >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 1 ELSE 0 END, state, host, pid, incarnation,
       queues, concurrency, active, COALESCE(active_ids, ''), lease, started_at, beat_at, alive_until, ended_at
  FROM holdfast_worker
 WHERE state = 'alive' OR %(everyone)s = 1
 ORDER BY started_at, incarnation

-- admin.rows.NOW
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- database.migrate.SCHEMA_TABLE
CREATE TABLE IF NOT EXISTS holdfast_schema (
    version INTEGER NOT NULL PRIMARY KEY,
    name VARCHAR(100) NOT NULL,
    applied_at BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4

-- database.migrate.VERSION
SELECT max(version) FROM holdfast_schema

-- database.migrate.RECORD
INSERT INTO holdfast_schema (version, name, applied_at) VALUES (%(version)s, %(name)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))

-- database.wakeup.NOTIFY
SELECT pg_notify('holdfast', %(queue)s)

-- steps.acknowledge.MOVE
-- (done by the statement before it)

-- steps.acknowledge.MOVE_WITH_RESULTS
-- (done by the statement before it)

-- steps.acknowledge.MOVE_ONE
INSERT INTO holdfast_archive (id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, progress, progress_note, error_group, last_error, cursor_json, committed_fence, payload, result, state, finished_at)
SELECT id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, progress, progress_note, error_group, last_error, cursor_json, fence, payload, %(result)s, 'done', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM holdfast_job WHERE id = %(id)s AND fence = %(fence)s
ON DUPLICATE KEY UPDATE holdfast_archive.id = holdfast_archive.id

-- steps.acknowledge.REMOVE_ONE
DELETE FROM holdfast_job WHERE id = %(id)s AND fence = %(fence)s

-- steps.acknowledge.LOCK_MANY
SELECT id FROM holdfast_job
 WHERE id IN %(ids)s AND fence = %(fence)s
 ORDER BY id
FOR UPDATE

-- steps.acknowledge.KEEP_RESULT
UPDATE holdfast_archive SET result = %(result)s WHERE id = %(id)s AND committed_fence = %(fence)s

-- steps.archive.ARCHIVE
INSERT INTO holdfast_archive (id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, progress, progress_note, error_group, last_error, cursor_json, committed_fence, payload, state, finished_at)
SELECT id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, progress, progress_note, error_group, last_error, cursor_json, fence, payload, %(state)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  FROM holdfast_job WHERE id IN %(ids)s
ON DUPLICATE KEY UPDATE holdfast_archive.id = holdfast_archive.id

-- steps.archive.REMOVE
DELETE FROM holdfast_job WHERE id IN %(ids)s

-- steps.commit.LOCK
SELECT id FROM holdfast_job WHERE id = %(id)s AND fence = %(fence)s FOR UPDATE

-- steps.commit.CONTINUE
UPDATE holdfast_job
   SET state = CASE WHEN %(delay)s > 0 THEN 'scheduled' ELSE 'ready' END, ready_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(delay)s,
       owner = NULL, leased_by = NULL, lease_until = NULL, cursor_json = %(cursor)s, step = step + 1,
       failures = 0, crashes = 0, error_group = NULL,
       fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND fence = %(fence)s AND cancel_at IS NULL

-- steps.commit.STEP_ON
UPDATE holdfast_job
   SET cursor_json = %(cursor)s, step = step + 1, failures = 0, crashes = 0, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND fence = %(fence)s

-- steps.commit.CONTINUE_HERE
UPDATE holdfast_job
   SET cursor_json = %(cursor)s, step = step + 1, failures = 0, crashes = 0, error_group = NULL,
       ready_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), leased_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND fence = %(fence)s AND cancel_at IS NULL

-- steps.commit.MORE_URGENT
SELECT 1 WHERE EXISTS (SELECT 1 FROM holdfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL)
            OR EXISTS (SELECT 1 FROM holdfast_job WHERE queue = %(queue)s AND state = 'ready' AND priority > %(priority)s)

-- steps.commit.PUT_BACK
UPDATE holdfast_job
   SET state = CASE WHEN %(delay)s > 0 THEN 'scheduled' ELSE 'ready' END, ready_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(delay)s,
       owner = NULL, leased_by = NULL, lease_until = NULL,
       fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND fence = %(fence)s AND cancel_at IS NULL

-- steps.commit.RETRY
UPDATE holdfast_job
   SET state = CASE WHEN %(delay)s > 0 THEN 'scheduled' ELSE 'ready' END, ready_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(delay)s,
       owner = NULL, leased_by = NULL, lease_until = NULL, failures = failures + %(charge)s,
       last_error = %(error)s,
       error_group = CASE WHEN %(charge)s = 0 AND error_group = 'Lease expired - worker crashed or timed out' THEN error_group ELSE %(error_group)s END,
       fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND fence = %(fence)s AND cancel_at IS NULL

-- steps.commit.BLAME
UPDATE holdfast_job
   SET failures = failures + %(charge)s, last_error = %(error)s, error_group = %(error_group)s, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND fence = %(fence)s

-- steps.commit.GIVE_BACK
UPDATE holdfast_job
   SET state = CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END,
       owner = NULL, leased_by = NULL, lease_until = NULL,
       fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id IN %(ids)s AND fence = %(fence)s AND cancel_at IS NULL

-- steps.commit.ASKED_TO_STOP
SELECT id FROM holdfast_job
 WHERE id IN %(ids)s AND fence = %(fence)s AND cancel_at IS NOT NULL
 ORDER BY id
FOR UPDATE

-- steps.dead_letters.CHOOSE
SELECT id, queue, finished_at FROM holdfast_archive
 WHERE state = 'dead' AND (%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
   AND (%(any_error)s = 1 OR error_group = %(error_group)s)
   AND finished_at BETWEEN %(after)s AND %(until)s AND (finished_at > %(after)s OR id > %(after_id)s)
 ORDER BY finished_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- steps.dead_letters.COUNT
SELECT count(*) FROM holdfast_archive
 WHERE state = 'dead' AND (%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
   AND (%(any_error)s = 1 OR error_group = %(error_group)s) AND finished_at <= %(until)s

-- steps.dead_letters.LOCK_ENDED
SELECT state, queue, unique_key FROM holdfast_archive WHERE id = %(id)s FOR UPDATE

-- steps.dead_letters.HOLDER
SELECT id FROM holdfast_job WHERE unique_key = %(key)s

-- steps.dead_letters.REVIVE
INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key,
                          step, failures, crashes, fence, progress, progress_note, last_error, error_group, cursor_json, payload)
SELECT id, queue, kind, CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END, priority, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), created_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), unique_key,
       step, 0, 0, %(fence)s, progress, progress_note, last_error, error_group, cursor_json, payload
  FROM holdfast_archive WHERE id IN %(ids)s AND state IN ('dead', 'cancelled')
 ORDER BY finished_at, id
ON DUPLICATE KEY UPDATE holdfast_job.id = holdfast_job.id

-- steps.dead_letters.LEAVE
DELETE FROM holdfast_archive
 WHERE id IN %(ids)s
   AND EXISTS (SELECT 1 FROM holdfast_job WHERE holdfast_job.id = holdfast_archive.id AND fence = %(fence)s)

-- steps.dead_letters.FORGET
DELETE FROM holdfast_archive WHERE id IN %(ids)s

-- steps.dead_letters.FORGET_LOGS
DELETE FROM holdfast_log WHERE job_id IN %(ids)s

-- steps.dead_letters.GROUPS
SELECT kind, COALESCE(error_group, ''), count(*), min(finished_at), max(finished_at), max(id)
  FROM holdfast_archive
 WHERE state = 'dead' AND (%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
   AND (%(any_error)s = 1 OR error_group = %(error_group)s)
 GROUP BY kind, error_group ORDER BY count(*) DESC, kind, max(id) LIMIT %(limit)s

-- steps.enqueue.ENQUEUE
INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, payload)
VALUES (%(id)s, %(queue)s, %(kind)s, %(state)s, %(priority)s, COALESCE(%(run_at)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(delay)s), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), %(key)s, %(payload)s)
ON DUPLICATE KEY UPDATE id = id

-- steps.enqueue.ENQUEUE_MANY
   INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, payload)
   SELECT new.id, %(queue)s, %(kind)s, %(state)s, %(priority)s, COALESCE(%(run_at)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(delay)s), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), new.unique_key, new.payload
     FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id VARCHAR(128) PATH '$[0]', unique_key VARCHAR(128) PATH '$[1]', payload LONGTEXT PATH '$[2]')) AS new
ON DUPLICATE KEY UPDATE id = holdfast_job.id

-- steps.enqueue.ENQUEUE_KEYLESS
-- (done by the statement before it)

-- steps.enqueue.HOLDERS
SELECT unique_key, id FROM holdfast_job WHERE unique_key IN %(keys)s

-- steps.enqueue.REPLACE
UPDATE holdfast_job
   SET queue = %(queue)s, kind = %(kind)s, payload = %(payload)s, priority = %(priority)s, state = %(state)s,
       ready_at = COALESCE(%(run_at)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(delay)s), updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), fence = %(fence)s, committed_fence = NULL,
       owner = NULL, leased_by = NULL, lease_until = NULL, cancel_at = NULL,
       step = step + 1, failures = 0, crashes = 0, cursor_json = NULL, progress = 0, progress_note = NULL,
       last_error = NULL, error_group = NULL
 WHERE unique_key = %(key)s AND state IN ('scheduled', 'ready', 'suspect', 'leased')

-- steps.enqueue.KNOWN
SELECT id FROM holdfast_job WHERE id = %(id)s UNION ALL SELECT id FROM holdfast_archive WHERE id = %(id)s

-- steps.fate.LIVE_FENCES
SELECT id, fence, COALESCE(committed_fence, 0) FROM holdfast_job WHERE id IN %(ids)s ORDER BY id FOR UPDATE

-- steps.fate.ARCHIVED_FENCES
SELECT id, COALESCE(committed_fence, 0) FROM holdfast_archive WHERE id IN %(ids)s

-- steps.keys.REMEMBER
INSERT INTO holdfast_key (id, job_id, until_at) VALUES (%(id)s, %(job_id)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(keep)s)
ON DUPLICATE KEY UPDATE id = id

-- steps.keys.TAKE_OVER
UPDATE holdfast_key SET job_id = %(job_id)s, until_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(keep)s
 WHERE id = %(id)s AND job_id <> %(job_id)s AND until_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- steps.keys.HOLDER
SELECT job_id FROM holdfast_key WHERE id = %(id)s

-- steps.keys.HAND_OVER
UPDATE holdfast_key SET job_id = %(holder)s WHERE id = %(id)s AND job_id = %(job_id)s

-- steps.keys.LET_GO
DELETE FROM holdfast_key WHERE id = %(id)s AND job_id = %(job_id)s

-- steps.keys.FORGET
DELETE FROM holdfast_key WHERE id IN %(ids)s

-- steps.keys.EXPIRED
SELECT id FROM holdfast_key WHERE until_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) ORDER BY until_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- steps.lease.PICK
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, payload
  FROM holdfast_job FORCE INDEX (holdfast_job_ready)
 WHERE queue = %(queue)s AND state = 'ready'  AND ready_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
   AND NOT EXISTS (SELECT 1 FROM holdfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL)
 ORDER BY priority DESC, ready_at, id
 LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- steps.lease.PICK_FROM_HINT
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, payload
  FROM holdfast_job FORCE INDEX (holdfast_job_ready)
 WHERE queue = %(queue)s AND state = 'ready' AND priority = %(priority)s AND ready_at >= %(hint)s AND ready_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
   AND NOT EXISTS (SELECT 1 FROM holdfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL)
 ORDER BY ready_at, id
 LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- steps.lease.TAKE
UPDATE holdfast_job
   SET state = 'leased', owner = %(owner)s, fence = %(fence)s, leased_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id IN %(ids)s AND state = 'ready'

-- steps.lease.SUSPECT
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, payload
  FROM holdfast_job
 WHERE state = 'suspect' AND (%(anywhere)s = 1 OR queue IN %(queues)s)
   AND queue NOT IN (SELECT id FROM holdfast_queue WHERE paused_at IS NOT NULL)
 ORDER BY ready_at
 LIMIT 1
FOR UPDATE SKIP LOCKED

-- steps.lease.TAKE_SUSPECT
UPDATE holdfast_job
   SET state = 'leased', owner = %(owner)s, fence = %(fence)s, leased_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND state = 'suspect'

-- steps.manual.PICK_ONE
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, payload
  FROM holdfast_job FORCE INDEX (holdfast_job_ready)
 WHERE queue = %(queue)s AND state = 'ready' AND ready_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
   AND NOT EXISTS (SELECT 1 FROM holdfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL)
 ORDER BY priority DESC, ready_at, id
 LIMIT 1
FOR UPDATE SKIP LOCKED

-- steps.manual.HOLD
UPDATE holdfast_job
   SET state = 'leased', owner = %(owner)s, fence = %(fence)s, leased_by = %(worker_id)s,
       leased_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), lease_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(duration)s, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND state = 'ready'

-- steps.manual.EXTEND
UPDATE holdfast_job SET lease_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(duration)s, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND fence = %(fence)s AND owner = %(owner)s

-- steps.manual.UNTIL
SELECT lease_until FROM holdfast_job WHERE id = %(id)s

-- steps.reports.PROGRESS
UPDATE holdfast_job
   SET progress = COALESCE(%(percent)s, progress), progress_note = COALESCE(%(note)s, progress_note), updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND fence = %(fence)s

-- steps.reports.LOG
INSERT INTO holdfast_log (job_id, at, level, step, message)
SELECT id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), %(level)s, step, %(message)s FROM holdfast_job
 WHERE id = %(id)s AND fence = %(fence)s

-- steps.rescue.ALIVE
SELECT incarnation, worker_id, process, CASE WHEN alive_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 1 ELSE 0 END
  FROM holdfast_worker WHERE state = 'alive' AND incarnation <> %(me)s

-- steps.rescue.LATE
SELECT incarnation, alive_until FROM holdfast_worker
 WHERE state = 'alive' AND incarnation <> %(me)s AND alive_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- steps.rescue.DECLARE_DEAD
UPDATE holdfast_worker
   SET state = 'dead', ended_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       abandoned = (SELECT count(*) FROM holdfast_job WHERE owner = %(incarnation)s AND state = 'leased')
 WHERE incarnation = %(incarnation)s AND state = 'alive' AND (alive_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) OR %(proven)s = 1)

-- steps.rescue.LEFT_BEHIND
SELECT w.incarnation, w.worker_id, w.state, COALESCE(w.abandoned, 0)
  FROM holdfast_worker w
 WHERE w.state IN ('dead', 'stopped')
   AND EXISTS (SELECT 1 FROM holdfast_job j WHERE j.owner = w.incarnation AND j.state = 'leased')
 LIMIT %(limit)s

-- steps.rescue.ABANDONED
SELECT id, crashes, cancel_at FROM holdfast_job
 WHERE owner = %(owner)s AND state = 'leased'
 LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- steps.rescue.EXPIRED_BY_HAND
SELECT id, crashes, cancel_at FROM holdfast_job
 WHERE owner = %(owner)s AND state = 'leased' AND lease_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- steps.rescue.ORPHANED
SELECT id, crashes, cancel_at FROM holdfast_job
 WHERE owner > %(owner)s AND state = 'leased'
   AND NOT EXISTS (SELECT 1 FROM holdfast_worker WHERE incarnation = owner)
 LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- steps.rescue.CHARGED
UPDATE holdfast_worker SET abandoned = 0 WHERE incarnation = %(incarnation)s AND state = 'dead'

-- steps.rescue.SUSPECT
UPDATE holdfast_job
   SET state = %(state)s, owner = NULL, leased_by = NULL, lease_until = NULL, fence = %(fence)s,
       crashes = crashes + %(charge)s, ready_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), error_group = %(error_group)s,
       last_error = CASE WHEN last_error IS NULL THEN %(note)s WHEN length(last_error) > 3500 THEN last_error
                         ELSE CONCAT(last_error, '; ', %(note)s) END
 WHERE id IN %(ids)s AND state = 'leased'

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
VALUES (%(incarnation)s, %(worker_id)s, 'alive', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(lease)s, %(lease)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
        %(process)s, %(host)s, %(pid)s, %(concurrency)s, %(queues)s)

-- worker.incarnation.STAY_ALIVE
UPDATE holdfast_worker
   SET alive_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(lease)s, beat_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), active = %(active)s, active_ids = %(active_ids)s
 WHERE incarnation = %(incarnation)s AND state = 'alive'

-- worker.incarnation.RESIGN
UPDATE holdfast_worker SET state = 'stopped', ended_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), active = 0, active_ids = NULL
 WHERE incarnation = %(incarnation)s AND state = 'alive'

-- worker.incarnation.CLOCK
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- worker.incarnation.STILL_MINE
SELECT id, fence, cancel_at FROM holdfast_job WHERE id IN %(ids)s

-- worker.maintenance.DUE
SELECT id, queue FROM holdfast_job WHERE state = 'scheduled' AND ready_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 ORDER BY ready_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- worker.maintenance.PROMOTE
UPDATE holdfast_job
   SET state = CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id IN %(ids)s

-- worker.maintenance.NEXT_DUE
SELECT min(ready_at) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM holdfast_job WHERE state = 'scheduled'

-- worker.maintenance.OLD
SELECT id FROM holdfast_archive WHERE state = %(state)s AND finished_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s
 ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- worker.maintenance.GONE_WORKERS
DELETE FROM holdfast_worker
 WHERE state IN ('dead', 'stopped') AND ended_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s
   AND NOT EXISTS (SELECT 1 FROM holdfast_job WHERE owner = holdfast_worker.incarnation AND state = 'leased')

-- worker.maintenance.LONG_MINE
SELECT id, fence FROM holdfast_job
 WHERE owner = %(owner)s AND state = 'leased' AND leased_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s LIMIT %(limit)s

-- worker.maintenance.SUSPECTS
SELECT count(*) FROM holdfast_job
 WHERE state = 'suspect' AND (%(anywhere)s = 1 OR queue IN %(queues)s)
   AND queue NOT IN (SELECT id FROM holdfast_queue WHERE paused_at IS NOT NULL)
