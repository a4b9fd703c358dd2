-- admin.actions.STATE
SELECT state, queue FROM holdfast_job WHERE id = %(id)s
UNION ALL SELECT state, queue FROM holdfast_archive WHERE id = %(id)s

-- admin.actions.CANCEL_WAITING
UPDATE holdfast_job SET fence = %(fence)s, error_group = %(error_group)s, last_error = %(reason)s, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id = %(id)s AND state IN ('scheduled', 'ready', 'suspect', 'held')

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

-- admin.audit.WRITE_DOWN
INSERT INTO holdfast_audit (id, at, ended_at, who, what, subject, why, touched, detail)
VALUES (%(id)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), CASE WHEN %(ended)s = 1 THEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) END, %(who)s, %(what)s, %(subject)s, %(why)s, %(touched)s, %(detail)s)

-- admin.audit.ADD
UPDATE holdfast_audit SET touched = touched + %(touched)s WHERE id = %(id)s AND ended_at IS NULL

-- admin.audit.END
UPDATE holdfast_audit SET ended_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) WHERE id = %(id)s AND ended_at IS NULL

-- admin.audit.LOOK
SELECT id FROM holdfast_audit WHERE at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s ORDER BY at, id LIMIT %(limit)s

-- admin.audit.OLD
SELECT id FROM holdfast_audit WHERE at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s ORDER BY at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- admin.audit.FORGET
DELETE FROM holdfast_audit WHERE id IN %(ids)s

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

-- admin.doctor.outbox.DEAD
SELECT count(*) FROM holdfast_outbox WHERE state = 'dead' AND ended_at IS NOT NULL

-- admin.doctor.outbox.STUCK
SELECT count(DISTINCT o.destination) FROM holdfast_outbox o
 WHERE o.state = 'waiting' AND o.due_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(overdue)s
   AND NOT EXISTS (SELECT 1 FROM holdfast_outbox h
                    WHERE h.state = 'waiting' AND h.destination = o.destination AND h.seq < o.seq)
   AND NOT EXISTS (SELECT 1 FROM holdfast_destination d WHERE d.id = o.destination AND d.leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))

-- admin.doctor.outbox.WAITING_FOR_SETTINGS
SELECT count(*), max(last_error) FROM holdfast_outbox
 WHERE state = 'waiting' AND attempts = 0 AND last_error IS NOT NULL

-- admin.doctor.outbox.UNTOLD
SELECT count(*) FROM holdfast_alert WHERE notify_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(overdue)s

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

-- admin.outbox.STATE
SELECT state FROM holdfast_outbox WHERE id = %(id)s FOR UPDATE

-- admin.outbox.REVIVE
UPDATE holdfast_outbox
   SET state = 'waiting', attempts = 0, since_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), ended_at = NULL
 WHERE id = %(id)s AND state = 'dead'

-- admin.outbox.REVIVE_MANY
UPDATE holdfast_outbox
   SET state = 'waiting', attempts = 0, since_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), ended_at = NULL
 WHERE id IN %(ids)s AND state = 'dead'

-- admin.outbox.HASTEN
UPDATE holdfast_outbox SET due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) WHERE id = %(id)s AND state = 'waiting' AND due_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- admin.outbox.PURGE
DELETE FROM holdfast_outbox WHERE id IN %(ids)s AND state = 'dead'

-- admin.outbox.CHOOSE
   SELECT id FROM holdfast_outbox WHERE 
   state = 'dead' AND ended_at <= %(until)s AND (%(any_channel)s = 1 OR channel = %(channel)s)
      AND (%(any_destination)s = 1 OR destination = %(destination)s)
ORDER BY ended_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- admin.outbox.COUNT
SELECT count(*) FROM holdfast_outbox WHERE 
    state = 'dead' AND ended_at <= %(until)s AND (%(any_channel)s = 1 OR channel = %(channel)s)
       AND (%(any_destination)s = 1 OR destination = %(destination)s)

-- admin.reports.audit.NEWEST
SELECT id, at, ended_at, who, what, subject, why, touched, detail
  FROM holdfast_audit
 WHERE (%(any_who)s = 1 OR who = %(who)s) AND (%(any_what)s = 1 OR what = %(what)s)
   AND (%(any_subject)s = 1 OR subject = %(subject)s) AND at >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s
   AND (at < %(at)s OR at = %(at)s AND id < %(before)s)
 ORDER BY at DESC, id DESC LIMIT %(limit)s

-- admin.reports.audit.PLACE
SELECT at FROM holdfast_audit WHERE id = %(id)s

-- admin.reports.dead_letters.NEWEST
   SELECT 
   id, state, kind, queue, priority, unique_key, step,
   failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, failures, crashes, progress, progress_note,
   created_at, ready_at, leased_at, finished_at, NULL, NULL, NULL, error_group, last_error
FROM holdfast_archive
    WHERE state = 'dead' AND (%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
      AND (%(any_error)s = 1 OR error_group = %(error_group)s)
    ORDER BY finished_at DESC, id DESC LIMIT %(limit)s

-- admin.reports.gauges.DEAD
SELECT queue, 'dead', count(*), NULL FROM holdfast_archive WHERE state = 'dead' GROUP BY queue

-- admin.reports.gauges.LIVE
SELECT queue, state, count(*), min(ready_at) FROM holdfast_job GROUP BY queue, state

-- admin.reports.gauges.PAUSED
SELECT id FROM holdfast_queue WHERE paused_at IS NOT NULL

-- admin.reports.gauges.WORKERS
SELECT count(*) FROM holdfast_worker WHERE state = 'alive' AND alive_until >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- admin.reports.gauges.OUTBOX
SELECT state, count(*), min(created_at) FROM holdfast_outbox
 WHERE state IN ('waiting', 'dead') GROUP BY state

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
, j.payload, j.cursor_json, NULL, NULL
      FROM holdfast_job j LEFT JOIN holdfast_worker w ON w.incarnation = j.owner
     WHERE j.id = %(id)s

-- admin.reports.jobs.SHOW_ENDED
    SELECT 
    id, state, kind, queue, priority, unique_key, step,
    failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, failures, crashes, progress, progress_note,
    created_at, ready_at, leased_at, finished_at, NULL, NULL, NULL, error_group, last_error
, payload, cursor_json, result, result_expired_at FROM holdfast_archive WHERE id = %(id)s

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

-- admin.reports.limits.LIMITS
SELECT l.id, l.slots, l.arrival_at, l.gap, l.tolerance, l.due_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       (SELECT count(*) FROM holdfast_slot s WHERE s.limit_id = l.id),
       (SELECT count(*) FROM holdfast_job j WHERE j.held_by = l.id AND j.state = 'held')
  FROM holdfast_limit l
 WHERE %(everything)s = 1 OR l.due_at IS NOT NULL OR EXISTS (SELECT 1 FROM holdfast_slot s WHERE s.limit_id = l.id)
 ORDER BY CASE WHEN l.due_at IS NULL THEN 1 ELSE 0 END, l.id
 LIMIT %(limit)s

-- admin.reports.outbox.NEWEST
SELECT id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error FROM holdfast_outbox WHERE (%(any_channel)s = 1 OR channel = %(channel)s) AND (%(any_state)s = 1 OR state = %(state)s) ORDER BY id DESC LIMIT %(limit)s

-- admin.reports.outbox.WAITING
SELECT id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error FROM holdfast_outbox WHERE state = 'waiting' AND (%(any_channel)s = 1 OR channel = %(channel)s) AND (%(any_state)s = 1 OR state = %(state)s) ORDER BY id DESC LIMIT %(limit)s

-- admin.reports.outbox.ENDED
SELECT id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error FROM holdfast_outbox WHERE state = %(state)s AND ended_at IS NOT NULL AND (%(any_channel)s = 1 OR channel = %(channel)s) AND (%(any_state)s = 1 OR state = %(state)s)
 ORDER BY ended_at DESC, id DESC LIMIT %(limit)s

-- admin.reports.outbox.OF_JOB
SELECT id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error FROM holdfast_outbox WHERE job_id = %(job_id)s AND (%(any_channel)s = 1 OR channel = %(channel)s) AND (%(any_state)s = 1 OR state = %(state)s) ORDER BY id DESC LIMIT %(limit)s

-- admin.reports.outbox.SHOW
SELECT id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error, destination, dedupe_key, trace, headers, body FROM holdfast_outbox WHERE id = %(id)s

-- admin.reports.outbox.UNSENT
SELECT destination, min(channel), min(address), sum(waiting), sum(dead)
  FROM (SELECT destination, channel, address, 1 AS waiting, 0 AS dead
          FROM holdfast_outbox WHERE state = 'waiting'
         UNION ALL
        SELECT destination, channel, address, 0, 1
          FROM holdfast_outbox WHERE state = 'dead' AND ended_at IS NOT NULL) unsent
 GROUP BY destination ORDER BY destination LIMIT %(limit)s

-- admin.reports.outbox.HEAD
SELECT created_at, due_at, last_error FROM holdfast_outbox
 WHERE state = 'waiting' AND destination = %(destination)s ORDER BY seq LIMIT 1

-- admin.reports.outbox.ALERTS
SELECT id, severity, title, raised, untold, first_at, last_at, notified_at, notify_at, body, message_ids,
       CASE WHEN quiet_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 1 ELSE 0 END
  FROM holdfast_alert ORDER BY last_at DESC LIMIT %(limit)s

-- admin.reports.outbox.STATES
SELECT id, state, last_error FROM holdfast_outbox WHERE id IN %(ids)s

-- admin.reports.queues.USED
SELECT 1 WHERE EXISTS (SELECT 1 FROM holdfast_job WHERE queue = %(queue)s)
            OR EXISTS (SELECT 1 FROM holdfast_archive WHERE queue = %(queue)s)

-- admin.reports.queues.QUEUES
SELECT id, paused_at, note FROM holdfast_queue

-- admin.reports.schedules.RECENT
SELECT k.id, k.job_id, COALESCE(j.state, a.state),
       CASE WHEN COALESCE(j.created_at, a.created_at) < k.until_at - %(remembered)s THEN 1 ELSE 0 END
  FROM holdfast_key k LEFT JOIN holdfast_job j ON j.id = k.job_id LEFT JOIN holdfast_archive a ON a.id = k.job_id
 WHERE k.id > %(first)s AND k.id < %(last)s
 ORDER BY k.id DESC LIMIT %(limit)s

-- admin.reports.statistics.ENDED
SELECT kind, state, count(*) FROM holdfast_archive
 WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(span)s AND (%(any_kind)s = 1 OR kind = %(kind)s)
 GROUP BY kind, state

-- admin.reports.statistics.TIMES
SELECT kind, avg(took), max(CASE WHEN place >= many * 0.5 AND place < many * 0.5 + 1 THEN took END),
       max(CASE WHEN place >= many * 0.95 AND place < many * 0.95 + 1 THEN took END), max(took), avg(waited)
  FROM (SELECT kind, finished_at - leased_at AS took, leased_at - ready_at AS waited,
               row_number() OVER (PARTITION BY kind ORDER BY finished_at - leased_at) AS place,
               count(*) OVER (PARTITION BY kind) AS many
          FROM holdfast_archive
         WHERE state = 'done' AND finished_at >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(span)s AND leased_at IS NOT NULL AND (%(any_kind)s = 1 OR kind = %(kind)s)) AS timed
 GROUP BY kind

-- admin.reports.statistics.FAILED
SELECT kind, error_group, sum(CASE state WHEN 'dead' THEN 1 ELSE 0 END), 0,
       sum(CASE state WHEN 'done' THEN 1 ELSE 0 END), max(finished_at), max(id)
  FROM holdfast_archive
 WHERE state IN ('done', 'dead') AND finished_at >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(span)s AND error_group IS NOT NULL AND (%(any_kind)s = 1 OR kind = %(kind)s)
 GROUP BY kind, error_group

-- admin.reports.statistics.RETRYING
SELECT kind, error_group, 0, count(*), 0, max(updated_at), max(id)
  FROM holdfast_job
 WHERE updated_at >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(span)s AND error_group IS NOT NULL AND (%(any_kind)s = 1 OR kind = %(kind)s)
 GROUP BY kind, error_group

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

-- limits.admission.NOW
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- limits.admission.HOLD
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id VARCHAR(128) PATH '$[0]', held_by VARCHAR(200) PATH '$[1]')) AS given
       STRAIGHT_JOIN holdfast_job ON holdfast_job.id = given.id
   SET holdfast_job.state = 'held', holdfast_job.held_by = given.held_by, owner = NULL, leased_by = NULL,
       lease_until = NULL, fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE fence = %(fence)s AND cancel_at IS NULL

-- limits.release.DUE
SELECT id, arrival_at, gap, tolerance, slots, due_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM holdfast_limit
 WHERE due_at IS NOT NULL AND due_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- limits.release.LOOKED_AT
UPDATE holdfast_limit
   SET due_at = %(due_at)s, arrival_at = %(arrival_at)s, gap = %(gap)s, tolerance = %(tolerance)s, slots = %(slots)s
 WHERE id = %(id)s

-- limits.release.LOOK_AT_ALL
UPDATE holdfast_limit SET due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) WHERE due_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- limits.release.LOOK_NOW
UPDATE holdfast_limit SET due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE due_at IS NOT NULL AND id IN (SELECT limit_id FROM holdfast_slot WHERE job_id IN %(ids)s)

-- limits.release.IDLE
SELECT id FROM holdfast_limit
 WHERE due_at IS NULL AND arrival_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s
   AND NOT EXISTS (SELECT 1 FROM holdfast_slot WHERE limit_id = holdfast_limit.id)
 LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- limits.release.FORGET
DELETE FROM holdfast_limit WHERE id IN %(ids)s

-- limits.release.WAITED_FOR
SELECT DISTINCT held_by FROM holdfast_job WHERE held_by IN %(limits)s AND state = 'held'

-- limits.release.WHO
SELECT kind, queue FROM holdfast_job WHERE held_by = %(limit_id)s AND state = 'held' LIMIT 1

-- limits.release.HELD
SELECT id, queue FROM holdfast_job
 WHERE held_by = %(limit_id)s AND state = 'held'
 ORDER BY priority DESC, ready_at, id
 LIMIT %(most)s
FOR UPDATE SKIP LOCKED

-- limits.release.LET_GO
UPDATE holdfast_job
   SET state = CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END,
       held_by = NULL, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id IN %(ids)s AND state = 'held'

-- limits.rows.ENSURE
INSERT INTO holdfast_limit (id) SELECT given.id FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id VARCHAR(200) PATH '$')) AS given ON DUPLICATE KEY UPDATE id = holdfast_limit.id

-- limits.rows.LOCK
SELECT id, arrival_at, gap, tolerance, slots, due_at FROM holdfast_limit WHERE id IN %(ids)s ORDER BY id FOR UPDATE

-- limits.rows.WRITE
INSERT INTO holdfast_limit (id, arrival_at, gap, tolerance, slots, due_at) SELECT * FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id VARCHAR(200) PATH '$[0]', arrival_at BIGINT PATH '$[1]', gap BIGINT PATH '$[2]', tolerance BIGINT PATH '$[3]', slots BIGINT PATH '$[4]', due_at BIGINT PATH '$[5]')) AS given ON DUPLICATE KEY UPDATE arrival_at = VALUES(arrival_at), gap = VALUES(gap), tolerance = VALUES(tolerance), slots = VALUES(slots), due_at = VALUES(due_at)

-- limits.slots.COUNT
SELECT limit_id, count(*) FROM holdfast_slot WHERE limit_id IN %(limits)s GROUP BY limit_id

-- limits.slots.TAKE
INSERT INTO holdfast_slot (job_id, limit_id, fence) SELECT taken.job_id, taken.limit_id, %(fence)s FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (job_id VARCHAR(128) PATH '$[0]', limit_id VARCHAR(200) PATH '$[1]')) AS taken ON DUPLICATE KEY UPDATE fence = VALUES(fence)

-- limits.slots.FREE
DELETE FROM holdfast_slot WHERE job_id IN %(ids)s AND fence = %(fence)s

-- limits.slots.DROP_STALE
DELETE FROM holdfast_slot
 WHERE limit_id IN %(limits)s
   AND NOT EXISTS (SELECT 1 FROM holdfast_job
                    WHERE holdfast_job.id = holdfast_slot.job_id AND holdfast_job.fence = holdfast_slot.fence)

-- outbox.alerts.KNOW
INSERT INTO holdfast_alert (id, severity, title, body, first_at, last_at)
VALUES (%(id)s, %(severity)s, %(title)s, %(body)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
ON DUPLICATE KEY UPDATE id = id

-- outbox.alerts.RAISE
UPDATE holdfast_alert
   SET severity = %(severity)s, title = %(title)s, body = %(body)s, raised = raised + %(times)s, untold = untold + %(times)s,
       last_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), quiet_for = %(quiet_for)s,
       notify_at = CASE WHEN notify_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(too_old)s THEN notify_at
                        WHEN quiet_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN quiet_until ELSE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) END
 WHERE id = %(id)s

-- outbox.alerts.DUE
SELECT id, severity, title, body, raised, untold, first_at, notified_at, quiet_for FROM holdfast_alert
 WHERE notify_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND notify_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(too_old)s
 ORDER BY notify_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- outbox.alerts.TOLD
UPDATE holdfast_alert
   SET notify_at = NULL, untold = 0, notified_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), quiet_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(quiet)s, message_ids = %(message_ids)s
 WHERE id = %(id)s AND notify_at IS NOT NULL

-- outbox.messages.STAGE
INSERT INTO holdfast_outbox (id, channel, destination, address, dedupe_key, state, created_at, since_at, due_at,
                             job_id, trace, headers, body)
VALUES (%(id)s, %(channel)s, %(destination)s, %(address)s, %(dedupe_key)s, 'waiting', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
        %(job_id)s, %(trace)s, %(headers)s, %(body)s)
ON DUPLICATE KEY UPDATE id = id

-- outbox.messages.HOLDER
SELECT id FROM holdfast_outbox WHERE destination = %(destination)s AND dedupe_key = %(dedupe_key)s

-- outbox.relay.HEADS
   SELECT head.destination
     FROM (SELECT destination, min(seq) AS seq FROM holdfast_outbox FORCE INDEX (holdfast_outbox_waiting)
            WHERE state = 'waiting' GROUP BY destination) head
     JOIN holdfast_outbox o ON o.seq = head.seq
    WHERE o.due_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND 
   NOT EXISTS (SELECT 1 FROM holdfast_destination d WHERE d.id = head.destination AND d.leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
ORDER BY o.due_at LIMIT %(limit)s

-- outbox.relay.MEET
INSERT INTO holdfast_destination (id) VALUES (%(id)s) ON DUPLICATE KEY UPDATE id = id

-- outbox.relay.KNOWN
SELECT id FROM holdfast_destination WHERE id IN %(ids)s

-- outbox.relay.FREE
SELECT id FROM holdfast_destination WHERE id IN %(ids)s AND leased_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) ORDER BY id FOR UPDATE SKIP LOCKED

-- outbox.relay.TAKE
UPDATE holdfast_destination SET fence = %(fence)s, leased_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(lease)s
 WHERE id = %(id)s AND leased_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- outbox.relay.RENEW
UPDATE holdfast_destination SET leased_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(lease)s WHERE id = %(id)s AND fence = %(fence)s

-- outbox.relay.RELEASE
UPDATE holdfast_destination SET fence = %(nobody)s, leased_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) WHERE id = %(id)s AND fence = %(fence)s

-- outbox.relay.HEAD
SELECT id, channel, destination, address, body, headers, trace, job_id, attempts, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - since_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - due_at
  FROM holdfast_outbox FORCE INDEX (holdfast_outbox_waiting) WHERE state = 'waiting' AND destination = %(destination)s
 ORDER BY seq LIMIT 1

-- outbox.relay.SENT
UPDATE holdfast_outbox SET state = 'sent', attempts = attempts + 1, ended_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), last_error = NULL
 WHERE id = %(id)s AND state = 'waiting'

-- outbox.relay.AGAIN
UPDATE holdfast_outbox SET attempts = attempts + %(charge)s, due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(delay)s, last_error = %(error)s
 WHERE id = %(id)s AND state = 'waiting'

-- outbox.relay.DIE
UPDATE holdfast_outbox SET state = 'dead', attempts = attempts + 1, ended_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), last_error = %(error)s
 WHERE id = %(id)s AND state = 'waiting'

-- outbox.retention.OLD
SELECT id FROM holdfast_outbox WHERE state = 'sent' AND ended_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s
 ORDER BY ended_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- outbox.retention.FORGET
DELETE FROM holdfast_outbox WHERE id IN %(ids)s AND state = 'sent'

-- outbox.retention.IDLE
SELECT id FROM holdfast_destination WHERE leased_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s
 ORDER BY leased_until LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- outbox.retention.FORGET_IDLE
DELETE FROM holdfast_destination WHERE id IN %(ids)s AND leased_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s

-- outbox.retention.QUIET
SELECT id FROM holdfast_alert WHERE last_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s AND quiet_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND (notify_at IS NULL OR notify_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s) ORDER BY last_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- outbox.retention.FORGET_QUIET
DELETE FROM holdfast_alert WHERE id IN %(ids)s AND last_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s AND quiet_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND (notify_at IS NULL OR notify_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s)

-- results.expiry.LOOK
SELECT id FROM holdfast_archive
 WHERE result_kind = %(kind)s AND result IS NOT NULL AND finished_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s
 ORDER BY finished_at LIMIT %(limit)s

-- results.expiry.OLD
    SELECT id FROM holdfast_archive
     WHERE result_kind = %(kind)s AND result IS NOT NULL AND finished_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s
     ORDER BY finished_at LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- results.expiry.EMPTY
UPDATE holdfast_archive SET result = NULL, result_expired_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 WHERE id IN %(ids)s AND result IS NOT NULL

-- results.outcome.LOOK
SELECT id, kind, state, failures + crashes + CASE state WHEN 'leased' THEN 1 ELSE 0 END, step, progress, progress_note,
       last_error, created_at, NULL, NULL, NULL
  FROM holdfast_job WHERE id IN %(ids)s
UNION ALL
SELECT id, kind, state, failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, step, progress, progress_note,
       last_error, created_at, finished_at, result_expired_at, result
  FROM holdfast_archive WHERE id IN %(ids)s

-- results.watching.LINES
SELECT id, at, level, step, message FROM holdfast_log
 WHERE job_id = %(id)s AND id > %(after)s ORDER BY id LIMIT %(limit)s

-- results.watching.NUMBERS
SELECT id FROM holdfast_log WHERE job_id = %(id)s AND id > %(after)s AND id <= %(newest)s ORDER BY id

-- results.watching.LINE
SELECT id, at, level, step, message FROM holdfast_log WHERE id = %(number)s AND job_id = %(id)s

-- schedules.changes.DELETE
DELETE FROM holdfast_schedule WHERE id = %(id)s AND revision = %(revision)s

-- schedules.changes.FORGET
DELETE FROM holdfast_schedule
 WHERE next_at IS NULL AND declared IS NULL AND COALESCE(last_at, once_at) < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s

-- schedules.declared.LOCK
SELECT id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as, next_at, last_at, paused_at, removed_at, source, declared, note, changed_at, revision FROM holdfast_schedule WHERE id = %(id)s FOR UPDATE

-- schedules.declared.KNOWN
SELECT id, declared FROM holdfast_schedule WHERE id IN %(ids)s

-- schedules.firing.NEXT_DUE
SELECT next_at - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM holdfast_schedule
 WHERE next_at IS NOT NULL AND paused_at IS NULL ORDER BY next_at LIMIT 1

-- schedules.firing.DUE
SELECT id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as, next_at, last_at, paused_at, removed_at, source, declared, note, changed_at, revision FROM holdfast_schedule
 WHERE next_at <= %(now)s AND paused_at IS NULL ORDER BY next_at, id LIMIT %(limit)s

-- schedules.firing.FREE
SELECT id FROM holdfast_schedule WHERE id IN %(ids)s ORDER BY id FOR UPDATE SKIP LOCKED

-- schedules.firing.MOVE
UPDATE holdfast_schedule SET next_at = %(next_at)s, last_at = COALESCE(%(last_at)s, last_at)
 WHERE id = %(id)s AND next_at = %(due)s AND revision = %(revision)s AND paused_at IS NULL

-- schedules.schedule.NOW
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- schedules.schedule.FIND
SELECT id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as, next_at, last_at, paused_at, removed_at, source, declared, note, changed_at, revision FROM holdfast_schedule WHERE id = %(id)s

-- schedules.schedule.LIST
SELECT id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as, next_at, last_at, paused_at, removed_at, source, declared, note, changed_at, revision FROM holdfast_schedule WHERE removed_at IS NULL OR %(everyone)s = 1 ORDER BY id

-- schedules.schedule.CREATE
INSERT INTO holdfast_schedule (id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as,
                               next_at, source, declared, note, changed_at, revision)
VALUES (%(id)s, %(kind)s, %(queue)s, %(priority)s, %(payload)s, %(cron)s, %(every)s, %(once_at)s, %(tz)s, %(missed)s, %(overlap)s, %(tick_as)s,
        %(next_at)s, %(source)s, %(declared)s, %(note)s, %(changed_at)s, %(revision)s)
ON DUPLICATE KEY UPDATE id = id

-- schedules.schedule.WRITE
UPDATE holdfast_schedule
   SET kind = %(kind)s, queue = %(queue)s, priority = %(priority)s, payload = %(payload)s, cron = %(cron)s, every = %(every)s,
       once_at = %(once_at)s, tz = %(tz)s, missed = %(missed)s, overlap = %(overlap)s, tick_as = %(tick_as)s, next_at = %(next_at)s,
       paused_at = %(paused_at)s, removed_at = %(removed_at)s, source = %(source)s, declared = %(declared)s, note = %(note)s,
       changed_at = %(changed_at)s, revision = %(new_revision)s
 WHERE id = %(id)s AND revision = %(revision)s

-- steps.acknowledge.MOVE
-- (done by the statement before it)

-- steps.acknowledge.MOVE_WITH_RESULTS
-- (done by the statement before it)

-- steps.acknowledge.MOVE_ONE
INSERT INTO holdfast_archive (id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, committed_fence, payload, result, state, finished_at)
SELECT id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, fence, payload, %(result)s, 'done', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM holdfast_job WHERE id = %(id)s AND fence = %(fence)s
ON DUPLICATE KEY UPDATE holdfast_archive.id = holdfast_archive.id

-- steps.acknowledge.REMOVE_ONE
DELETE FROM holdfast_job WHERE id = %(id)s AND fence = %(fence)s

-- steps.acknowledge.LOCK_MANY
SELECT id FROM holdfast_job
 WHERE id IN %(ids)s AND fence = %(fence)s
 ORDER BY id
FOR UPDATE

-- steps.acknowledge.HOW_MANY
SELECT count(*) FROM holdfast_job WHERE id IN %(ids)s AND fence = %(fence)s

-- steps.acknowledge.KEEP_RESULT
UPDATE holdfast_archive SET result = %(result)s WHERE id = %(id)s AND committed_fence = %(fence)s

-- steps.ageing.SPREAD
SELECT (SELECT priority FROM holdfast_job WHERE queue = %(queue)s AND state = 'ready' ORDER BY priority LIMIT 1),
       (SELECT priority FROM holdfast_job WHERE queue = %(queue)s AND state = 'ready' ORDER BY priority DESC LIMIT 1)

-- steps.ageing.OVERDUE
SELECT id FROM holdfast_job
 WHERE queue = %(queue)s AND state = 'ready' AND priority = %(priority)s
   AND ready_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s AND updated_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(age)s
 ORDER BY ready_at, id
 LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- steps.ageing.NEXT_PRIORITY
SELECT min(priority) FROM holdfast_job WHERE queue = %(queue)s AND state = 'ready' AND priority > %(priority)s

-- steps.ageing.RISE
UPDATE holdfast_job SET priority = priority + 1, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) WHERE id IN %(ids)s AND state = 'ready'

-- steps.archive.ARCHIVE
INSERT INTO holdfast_archive (id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, committed_fence, payload, state, finished_at)
SELECT id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, fence, payload, %(state)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
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
                          step, failures, crashes, trace, fence, progress, progress_note, last_error, error_group, cursor_json, payload)
SELECT id, queue, kind, CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END, priority, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), created_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), unique_key,
       step, 0, 0, trace, %(fence)s, progress, progress_note, last_error, error_group, cursor_json, payload
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
INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, trace, payload)
VALUES (%(id)s, %(queue)s, %(kind)s, %(state)s, %(priority)s, COALESCE(%(run_at)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(delay)s), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), %(key)s, %(trace)s, %(payload)s)
ON DUPLICATE KEY UPDATE id = id

-- steps.enqueue.ENQUEUE_MANY
   INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, trace, payload)
   SELECT new.id, %(queue)s, %(kind)s, %(state)s, %(priority)s, COALESCE(%(run_at)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + %(delay)s), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), new.unique_key, %(trace)s, new.payload
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
       owner = NULL, leased_by = NULL, lease_until = NULL, cancel_at = NULL, held_by = NULL,
       step = step + 1, failures = 0, crashes = 0, cursor_json = NULL, progress = 0, progress_note = NULL,
       last_error = NULL, error_group = NULL, trace = %(trace)s
 WHERE unique_key = %(key)s AND state IN ('scheduled', 'ready', 'suspect', 'leased', 'held')

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
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload
  FROM holdfast_job FORCE INDEX (holdfast_job_ready)
 WHERE queue = %(queue)s AND state = 'ready'  AND ready_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
   AND NOT EXISTS (SELECT 1 FROM holdfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL)
 ORDER BY priority DESC, ready_at, id
 LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- steps.lease.PICK_FROM_HINT
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload
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
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload
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
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload
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

-- steps.queues.QUEUES_WITH_WORK
-- (done by the statement before it)

-- steps.queues.NEXT_QUEUE
SELECT min(queue) FROM holdfast_job WHERE queue > %(after)s

-- steps.queues.HAS_WORK
SELECT 1 FROM holdfast_job
 WHERE queue = %(queue)s AND state = 'ready'
   AND NOT EXISTS (SELECT 1 FROM holdfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL)
 LIMIT 1

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
SELECT id, crashes, cancel_at, kind, queue, trace FROM holdfast_job
 WHERE owner = %(owner)s AND state = 'leased'
 LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- steps.rescue.EXPIRED_BY_HAND
SELECT id, crashes, cancel_at, kind, queue, trace FROM holdfast_job
 WHERE owner = %(owner)s AND state = 'leased' AND lease_until < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
 LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- steps.rescue.ORPHANED
SELECT id, crashes, cancel_at, kind, queue, trace FROM holdfast_job
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

-- testing.assertions.CLOCK
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- testing.crash.ALIVE
SELECT incarnation FROM holdfast_worker WHERE process = %(process)s AND state = 'alive'

-- testing.crash.GONE
UPDATE holdfast_worker
   SET process = %(process)s, alive_until = CASE WHEN %(known)s = 1 THEN 0 ELSE alive_until END
 WHERE incarnation = %(incarnation)s AND state = 'alive'

-- testing.inline_mode.READY
SELECT id FROM holdfast_job WHERE state IN ('ready', 'suspect') AND ready_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) LIMIT 1

-- testing.left.LEFT
    SELECT count(CASE WHEN state = 'leased' THEN 1 END), count(CASE WHEN state = 'ready' THEN 1 END),
           count(CASE WHEN state = 'suspect' THEN 1 END),
           count(CASE WHEN state = 'scheduled' THEN 1 END)
             + (SELECT count(*) FROM holdfast_limit WHERE due_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
           (SELECT count(*) FROM holdfast_schedule WHERE next_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND paused_at IS NULL),
           (SELECT count(*) FROM holdfast_outbox o WHERE o.due_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND 
    %(relay)s = 1 AND o.state = 'waiting' AND NOT EXISTS (
        SELECT 1 FROM holdfast_outbox e WHERE e.state = 'waiting' AND e.destination = o.destination AND e.seq < o.seq)
)
      FROM holdfast_job
     WHERE (%(anywhere)s = 1 OR queue IN %(queues)s) AND (
           (state = 'leased' AND owner IN (SELECT incarnation FROM holdfast_worker WHERE worker_id = %(worker_id)s))
        OR (state IN ('ready', 'suspect') AND ready_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND queue NOT IN (SELECT id FROM holdfast_queue WHERE paused_at IS NOT NULL))
        OR (state = 'scheduled' AND ready_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))))

-- testing.left.NEXT_JOB
SELECT min(ready_at) FROM holdfast_job
 WHERE state IN ('scheduled', 'ready') AND ready_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND kind IN %(kinds)s
   AND (%(anywhere)s = 1 OR queue IN %(queues)s) AND queue NOT IN (SELECT id FROM holdfast_queue WHERE paused_at IS NOT NULL)

-- testing.left.NEXT_RATE
SELECT min(due_at) FROM holdfast_limit WHERE due_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND gap > 0

-- testing.left.NEXT_MESSAGE
SELECT min(o.due_at) FROM holdfast_outbox o WHERE o.due_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND 
    %(relay)s = 1 AND o.state = 'waiting' AND NOT EXISTS (
        SELECT 1 FROM holdfast_outbox e WHERE e.state = 'waiting' AND e.destination = o.destination AND e.seq < o.seq)

-- testing.moved_clock.LIVING
SELECT count(*) FROM holdfast_worker WHERE process = %(process)s AND state = 'alive'

-- testing.moved_clock.CARRY_ON
UPDATE holdfast_worker SET alive_until = alive_until + %(passed)s, beat_at = beat_at + %(passed)s
 WHERE process = %(process)s AND state = 'alive'

-- testing.stored.UNFINISHED
SELECT 
    id, kind, queue, state, priority, unique_key, step, failures, crashes, ready_at, created_at, last_error, cursor_json, payload
 FROM holdfast_job ORDER BY created_at, id

-- testing.stored.FINISHED
SELECT 
    id, kind, queue, state, priority, unique_key, step, failures, crashes, ready_at, created_at, last_error, cursor_json, payload
 FROM holdfast_archive ORDER BY created_at, id

-- testing.stored.MARKS
SELECT id, fence, last_error FROM holdfast_job

-- testing.stored.TOUCHED
SELECT 
    id, kind, queue, state, priority, unique_key, step, failures, crashes, ready_at, created_at, last_error, cursor_json, payload
, fence FROM holdfast_job ORDER BY created_at, id

-- testing.stored.ENDED_SINCE
SELECT id FROM holdfast_archive
 WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= %(since)s

-- testing.stored.ENDED_JOBS_SINCE
   SELECT 
   id, kind, queue, state, priority, unique_key, step, failures, crashes, ready_at, created_at, last_error, cursor_json, payload
FROM holdfast_archive
    WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= %(since)s
    ORDER BY created_at, id

-- testing.until_idle.LEASES
SELECT count(*) FROM holdfast_job WHERE state = 'leased'

-- testing.until_idle.GHOST_LEASES
SELECT count(*) FROM holdfast_job
 WHERE state = 'leased' AND owner IN (SELECT incarnation FROM holdfast_worker WHERE state = 'dead')

-- worker.deaths.KNOWN
SELECT 1 FROM holdfast_bookmark WHERE id = %(id)s

-- worker.deaths.BEGIN
INSERT INTO holdfast_bookmark (id, at) VALUES (%(id)s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) ON DUPLICATE KEY UPDATE id = id

-- worker.deaths.WHERE
SELECT at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM holdfast_bookmark WHERE id = %(id)s FOR UPDATE SKIP LOCKED

-- worker.deaths.MOVE
UPDATE holdfast_bookmark SET at = %(at)s WHERE id = %(id)s AND at <> %(at)s

-- worker.deaths.UNNOTICED
SELECT a.id, a.kind, COALESCE(a.error_group, ''), a.queue, COALESCE(a.last_error, ''), a.finished_at
  FROM holdfast_archive a
 WHERE a.state = 'dead' AND a.finished_at > %(since)s
   AND NOT EXISTS (SELECT 1 FROM holdfast_death d WHERE d.id = a.id AND d.finished_at = a.finished_at)
 ORDER BY a.finished_at LIMIT %(limit)s

-- worker.deaths.NOTICE
INSERT INTO holdfast_death (id, finished_at) VALUES (%(id)s, %(finished_at)s) ON DUPLICATE KEY UPDATE id = id

-- worker.deaths.FORGET
DELETE FROM holdfast_death WHERE finished_at < %(before)s

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
SELECT (SELECT min(ready_at) FROM holdfast_job WHERE state = 'scheduled') - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       (SELECT min(due_at) FROM holdfast_limit WHERE due_at IS NOT NULL) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

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

-- worker.relay.ANYTHING
SELECT CASE WHEN EXISTS (SELECT 1 FROM holdfast_outbox WHERE state = 'waiting') THEN 1 ELSE 0 END,
       CASE WHEN EXISTS (SELECT 1 FROM holdfast_alert
                          WHERE notify_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND notify_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - %(too_old)s) THEN 1 ELSE 0 END,
       CASE WHEN EXISTS (SELECT 1 FROM holdfast_archive a
                          WHERE a.state = 'dead' AND a.finished_at > %(since)s
                            AND NOT EXISTS (SELECT 1 FROM holdfast_death d
                                             WHERE d.id = a.id AND d.finished_at = a.finished_at))
            THEN 1 ELSE 0 END
