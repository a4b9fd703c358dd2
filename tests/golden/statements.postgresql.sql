-- admin.audit.INSERT_ENTRY
INSERT INTO stepfast_audit (id, at, ended_at, who, what, subject, why, touched, detail)
VALUES (%(id)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CASE WHEN %(ended)s = 1 THEN CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) END, %(who)s, %(what)s, %(subject)s, %(why)s, %(touched)s, %(detail)s)

-- admin.audit.ADD_TOUCHED
UPDATE stepfast_audit SET touched = touched + %(touched)s WHERE id = %(id)s AND ended_at IS NULL

-- admin.audit.END_ENTRY
UPDATE stepfast_audit SET ended_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND ended_at IS NULL

-- admin.audit.LIST_ENTRIES
SELECT id, at, ended_at, who, what, subject, why, touched, detail
  FROM stepfast_audit
 WHERE (%(any_who)s = 1 OR who = %(who)s) AND (%(any_what)s = 1 OR what = %(what)s)
   AND (%(any_subject)s = 1 OR subject = %(subject)s) AND at >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s
   AND (at < %(at)s OR at = %(at)s AND id < %(before)s)
 ORDER BY at DESC, id DESC LIMIT %(limit)s

-- admin.audit.ENTRY_TIME
SELECT at FROM stepfast_audit WHERE id = %(id)s

-- admin.audit.ANY_OLD_ENTRY
SELECT id FROM stepfast_audit WHERE at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s ORDER BY at, id LIMIT %(limit)s

-- admin.audit.OLD_ENTRIES
SELECT id FROM stepfast_audit WHERE at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s ORDER BY at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- admin.audit.FORGET_ENTRIES
DELETE FROM stepfast_audit WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- admin.dead_letters.LIST_DEAD
   SELECT 
   id, state, kind, queue, priority, unique_key, step,
   failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, failures, crashes, progress, progress_note,
   created_at, ready_at, leased_at, finished_at, NULL, NULL, NULL, error_group, last_error
FROM stepfast_archive
    WHERE state = 'dead' AND (%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
      AND (%(any_error)s = 1 OR error_group = %(error_group)s)
    ORDER BY finished_at DESC, id DESC LIMIT %(limit)s

-- admin.dead_letters.LOCK_ENDED_JOB
SELECT state FROM stepfast_archive WHERE id = %(id)s FOR UPDATE

-- admin.debts.LIST_DEBTS
SELECT id, feed, CASE WHEN state = 'open' AND tries >= %(tries)s THEN 'given up' ELSE state END, name, window_from,
       window_to, tries, run_id, opened_at, closed_at, closed_by, reason
  FROM stepfast_debt
 WHERE (%(any_feed)s = 1 OR feed = %(feed)s) AND (%(everything)s = 1 OR state = 'open')
 ORDER BY id DESC LIMIT %(limit)s

-- admin.debts.LOCK_DEBT
SELECT feed, name, state, tries FROM stepfast_debt WHERE id = %(id)s FOR UPDATE

-- admin.debts.CLOSE_DEBT
UPDATE stepfast_debt SET state = 'closed', closed_by = NULL, closed_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), reason = %(reason)s
 WHERE id = %(id)s AND state = 'open'

-- admin.debts.REOPEN_DEBT
UPDATE stepfast_debt SET state = 'open', tries = 0, closed_by = NULL, closed_at = NULL, reason = NULL
 WHERE id = %(id)s AND (state = 'closed' OR tries > 0)

-- admin.doctor.broker.FEEDS
SELECT count(*) FROM stepfast_feed

-- admin.doctor.mariadb.SERVER_VERSION
SELECT version()

-- admin.doctor.mariadb.SERVER_VARIABLES
SHOW GLOBAL VARIABLES WHERE variable_name IN ('innodb_flush_log_at_trx_commit', 'max_connections', 'read_only',
                                              'sql_mode', 'max_allowed_packet')

-- admin.doctor.mariadb.SESSION_ISOLATION
SHOW SESSION VARIABLES WHERE variable_name IN ('tx_isolation', 'transaction_isolation')

-- admin.doctor.mariadb.CLUSTER_STATUS
SHOW GLOBAL STATUS WHERE variable_name IN ('wsrep_ready', 'wsrep_cluster_status', 'wsrep_cluster_size',
                                           'wsrep_local_state_comment', 'Rpl_semi_sync_master_status',
                                           'Rpl_semi_sync_master_clients')

-- admin.doctor.mariadb.IS_IN_CLUSTER
SHOW GLOBAL VARIABLES LIKE 'wsrep_on'

-- admin.doctor.mariadb.COUNT_CONNECTIONS
SHOW GLOBAL STATUS LIKE 'Threads_connected'

-- admin.doctor.mariadb.OLD_SESSIONS
SELECT t.trx_mysql_thread_id, p.user, p.host, p.command, TIMESTAMPDIFF(SECOND, t.trx_started, NOW()),
       COALESCE(t.trx_query, p.info, ''), t.trx_rows_locked + t.trx_rows_modified
  FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
 WHERE p.db = database() AND p.id <> connection_id() AND TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) >= %(age)s
 ORDER BY t.trx_started

-- admin.doctor.mariadb.BLOCKING_SESSIONS
SELECT t.trx_mysql_thread_id, count(*)
  FROM information_schema.innodb_lock_waits w
  JOIN information_schema.innodb_locks l ON l.lock_id = w.blocking_lock_id
  JOIN information_schema.innodb_trx t ON t.trx_id = w.blocking_trx_id
 WHERE l.lock_table LIKE '%%`stepfast%%'
 GROUP BY t.trx_mysql_thread_id

-- admin.doctor.postgresql.SERVER_SETTINGS
SELECT current_setting('server_version'), CAST(current_setting('server_version_num') AS INTEGER),
       current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
       current_setting('autovacuum'), pg_is_in_recovery()

-- admin.doctor.postgresql.COUNT_CONNECTIONS
SELECT count(*), CAST(current_setting('max_connections') AS INTEGER)
  FROM pg_stat_activity WHERE backend_type = 'client backend'

-- admin.doctor.postgresql.OLD_SESSIONS
SELECT a.pid, COALESCE(a.usename, '?'), COALESCE(a.application_name, ''), COALESCE(a.state, ''),
       CAST(extract(epoch FROM clock_timestamp() - a.xact_start) AS DOUBLE PRECISION), COALESCE(a.query, ''),
       EXISTS (SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                WHERE l.pid = a.pid AND l.granted AND l.mode <> 'AccessShareLock' AND l.database = a.datid
                  AND c.relname LIKE 'stepfast%%'),
       a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL,
       COALESCE(a.wait_event, '') = 'SyncRep',
       (SELECT count(*) FROM pg_stat_activity w WHERE a.pid = ANY(pg_blocking_pids(w.pid)))
  FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
   AND a.xact_start < clock_timestamp() - CAST(%(age)s AS INTEGER) * interval '1 second'
 ORDER BY a.xact_start

-- admin.doctor.postgresql.STANDBYS
SELECT current_setting('synchronous_standby_names'),
       (SELECT count(*) FROM pg_stat_activity
         WHERE wait_event = 'SyncRep' AND state_change < clock_timestamp() - CAST(%(age)s AS INTEGER) * interval '1 second'),
       (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
       (SELECT count(sync_state) FROM pg_stat_replication),
       (SELECT count(*) FROM pg_stat_replication)

-- admin.doctor.postgresql.PREPARED_TRANSACTIONS
SELECT gid, owner, CAST(extract(epoch FROM clock_timestamp() - prepared) AS DOUBLE PRECISION)
  FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared

-- admin.doctor.postgresql.TABLES_WITH_DEAD_ROWS
SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
 WHERE relname LIKE 'stepfast%%' AND n_dead_tup > %(most)s AND n_dead_tup > 2 * n_live_tup
 ORDER BY n_dead_tup DESC

-- admin.doctor.runs.FEEDS
SELECT f.id, f.watermark, f.troubles, f.troubled_at, f.paused_until, f.pause_reason, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + f.skew,
       (SELECT count(*) FROM stepfast_debt d WHERE d.feed = f.id AND d.state = 'open' AND d.tries >= %(tries)s)
  FROM stepfast_feed f ORDER BY f.id

-- admin.doctor.runs.NEWEST_RUN_OF_FEED
SELECT id, feed, state, reason FROM stepfast_run WHERE feed = %(feed)s AND kind NOT IN ('backfill', 'remap')
 ORDER BY started_at DESC, id DESC LIMIT 1

-- admin.doctor.runs.RUNS_NOT_ENDED
SELECT id, feed, state, reason FROM stepfast_run WHERE ended_at IS NULL ORDER BY started_at

-- admin.doctor.runs.STUCK_PARTITIONS
SELECT p.run_id, count(*) 
      FROM stepfast_partition p
      JOIN stepfast_run r ON r.id = p.run_id
      LEFT JOIN stepfast_job j ON j.id = p.job_id
      LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE 
    (p.state IN ('ready', 'running') AND r.ended_at IS NULL
     AND (j.id IS NULL OR (j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))))
 GROUP BY p.run_id ORDER BY p.run_id

-- admin.doctor.sqlite.SQLITE_VERSION
SELECT sqlite_version()

-- admin.doctor.sqlite.JOURNAL_MODE
PRAGMA journal_mode

-- admin.doctor.sqlite.SYNCHRONOUS
PRAGMA synchronous

-- admin.doctor.work.OVERDUE_JOBS
SELECT count(*), COALESCE(max(CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - ready_at), 0) FROM stepfast_job WHERE state = 'scheduled' AND ready_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- admin.doctor.work.LONGEST_SUSPECT
SELECT COALESCE(max(CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - ready_at), 0) FROM stepfast_job WHERE state = 'suspect'

-- admin.doctor.work.JOBS_OF_UNKNOWN_KINDS
SELECT kind, count(*) FROM stepfast_job
 WHERE state IN ('ready', 'scheduled') AND error_group LIKE 'UnknownKindError%%' GROUP BY kind ORDER BY kind

-- admin.doctor.work.FORGOTTEN_LEASES
SELECT w.worker_id, count(*) FROM stepfast_job j JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE j.state = 'leased' AND j.leased_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s AND w.state = 'alive' AND w.alive_until > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND w.active = 0
 GROUP BY w.worker_id ORDER BY w.worker_id

-- admin.doctor.work.WAITING_FOR_DEAD_JOBS
SELECT count(DISTINCT d.child_id), min(d.parent_id)
  FROM stepfast_archive a JOIN stepfast_dependency d ON d.parent_id = a.id
 WHERE a.state IN ('dead', 'cancelled') AND d.state = 'open'

-- admin.doctor.work.BROKER_DEAD_LETTERS
SELECT count(*) FROM stepfast_dead_message

-- admin.doctor.work.OVERTAKEN_DEAD_LETTERS
SELECT count(*)
  FROM stepfast_run r
  JOIN stepfast_partition p ON p.run_id = r.id AND p.state = 'failed'
  JOIN stepfast_archive a ON a.id = p.job_id AND a.state = 'dead'
 WHERE r.state = 'failed'
   AND EXISTS (SELECT 1 FROM stepfast_run n
                WHERE n.feed = r.feed AND n.state = 'completed' AND n.started_at > r.started_at)

-- admin.doctor.work.COUNT_DEAD_MESSAGES
SELECT count(*) FROM stepfast_outbox WHERE state = 'dead' AND ended_at IS NOT NULL

-- admin.doctor.work.STUCK_DESTINATIONS
SELECT count(DISTINCT o.destination) FROM stepfast_outbox o
 WHERE o.state = 'waiting' AND o.due_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(overdue)s
   AND NOT EXISTS (SELECT 1 FROM stepfast_outbox h
                    WHERE h.state = 'waiting' AND h.destination = o.destination AND h.seq < o.seq)
   AND NOT EXISTS (SELECT 1 FROM stepfast_destination d WHERE d.id = o.destination AND d.leased_until > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))

-- admin.doctor.work.MESSAGES_WITHOUT_SETTINGS
SELECT count(*), max(last_error) FROM stepfast_outbox
 WHERE state = 'waiting' AND attempts = 0 AND last_error IS NOT NULL AND last_error NOT LIKE %(waits_for_host)s

-- admin.doctor.work.COUNT_UNTOLD_ALERTS
SELECT count(*) FROM stepfast_alert WHERE notify_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(overdue)s

-- admin.encryption.ENCRYPTED_JOBS
SELECT id, kind, fence, CAST(payload AS TEXT), cursor_json FROM stepfast_job
 WHERE id > %(after)s AND (CAST(payload AS TEXT) LIKE %(inside)s OR cursor_json LIKE %(inside)s)
 ORDER BY id LIMIT %(limit)s FOR UPDATE

-- admin.encryption.ENCRYPTED_ENDED
SELECT id, kind, payload, cursor_json, result FROM stepfast_archive
 WHERE id > %(after)s AND (payload LIKE %(inside)s OR cursor_json LIKE %(inside)s OR result LIKE %(inside)s)
 ORDER BY id LIMIT %(limit)s FOR UPDATE

-- admin.encryption.ENCRYPTED_EVENTS
SELECT id, event_id, name, payload FROM stepfast_event
 WHERE id > %(after)s AND payload LIKE %(inside)s
 ORDER BY id LIMIT %(limit)s FOR UPDATE

-- admin.encryption.WRITE_JOB
UPDATE stepfast_job SET payload = CAST(CAST(%(payload)s AS TEXT) AS JSON), cursor_json = %(cursor)s WHERE id = %(id)s AND fence = %(fence)s

-- admin.encryption.WRITE_ENDED
UPDATE stepfast_archive SET payload = %(payload)s, cursor_json = %(cursor)s, result = %(result)s WHERE id = %(id)s

-- admin.encryption.WRITE_EVENT
UPDATE stepfast_event SET payload = %(payload)s WHERE id = %(id)s

-- admin.events.LIST_WAITS
SELECT w.name, w.job_id, j.kind, j.queue, j.ready_at
  FROM stepfast_wait w JOIN stepfast_job j ON j.id = w.job_id AND j.fence = w.fence AND j.state = 'scheduled'
 ORDER BY w.id LIMIT %(limit)s

-- admin.events.LIST_KEPT
SELECT name, event_id, sent_at, until_at, payload FROM stepfast_event
 WHERE until_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) ORDER BY id LIMIT %(limit)s

-- admin.jobs.LIST_LIVE
SELECT 
j.id, j.state, j.kind, j.queue, j.priority, j.unique_key, j.step,
j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END, j.failures, j.crashes, j.progress, j.progress_note,
j.created_at, j.ready_at, j.leased_at, NULL,
CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END,
CASE j.state WHEN 'leased' THEN COALESCE(j.lease_until, w.alive_until) END,
j.cancel_at, j.error_group, j.last_error

  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE j.state = ANY(CAST(%(states)s AS TEXT[])) AND 
(%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s) AND (%(any_id)s = 1 OR id < %(before)s)

 ORDER BY j.id DESC LIMIT %(limit)s

-- admin.jobs.LIST_ENDED
   SELECT 
   id, state, kind, queue, priority, unique_key, step,
   failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, failures, crashes, progress, progress_note,
   created_at, ready_at, leased_at, finished_at, NULL, NULL, NULL, error_group, last_error
FROM stepfast_archive
    WHERE state = ANY(CAST(%(states)s AS TEXT[])) AND 
   (%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s) AND (%(any_id)s = 1 OR id < %(before)s)

    ORDER BY id DESC LIMIT %(limit)s

-- admin.jobs.SHOW_LIVE
    SELECT 
    j.id, j.state, j.kind, j.queue, j.priority, j.unique_key, j.step,
    j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END, j.failures, j.crashes, j.progress, j.progress_note,
    j.created_at, j.ready_at, j.leased_at, NULL,
    CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END,
    CASE j.state WHEN 'leased' THEN COALESCE(j.lease_until, w.alive_until) END,
    j.cancel_at, j.error_group, j.last_error
, j.payload, j.cursor_json, NULL, NULL
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE j.id = %(id)s

-- admin.jobs.SHOW_ENDED
    SELECT 
    id, state, kind, queue, priority, unique_key, step,
    failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, failures, crashes, progress, progress_note,
    created_at, ready_at, leased_at, finished_at, NULL, NULL, NULL, error_group, last_error
, payload, cursor_json, result, result_expired_at FROM stepfast_archive WHERE id = %(id)s

-- admin.jobs.JOB_LOGS
SELECT at, level, step, message FROM stepfast_log WHERE job_id = %(id)s ORDER BY id DESC LIMIT %(limit)s

-- admin.jobs.JOB_PARENTS
SELECT d.parent_id, COALESCE(j.state, a.state, 'forgotten'), COALESCE(j.kind, a.kind), d.bond, d.state, d.on_dead
  FROM stepfast_dependency d LEFT JOIN stepfast_job j ON j.id = d.parent_id
       LEFT JOIN stepfast_archive a ON a.id = d.parent_id
 WHERE d.child_id = %(id)s 
 ORDER BY d.parent_id LIMIT %(limit)s

-- admin.jobs.GROUP_MEMBERS
SELECT d.parent_id, COALESCE(j.state, a.state, 'forgotten'), COALESCE(j.kind, a.kind), d.bond, d.state, d.on_dead
  FROM stepfast_dependency d LEFT JOIN stepfast_job j ON j.id = d.parent_id
       LEFT JOIN stepfast_archive a ON a.id = d.parent_id
 WHERE d.child_id = %(id)s AND d.bond = 'member'
 ORDER BY d.parent_id LIMIT %(limit)s

-- admin.jobs.JOB_CHILDREN
SELECT d.child_id, COALESCE(j.state, a.state, 'forgotten'), COALESCE(j.kind, a.kind), d.bond, d.state, d.on_dead
  FROM stepfast_dependency d LEFT JOIN stepfast_job j ON j.id = d.child_id
       LEFT JOIN stepfast_archive a ON a.id = d.child_id
 WHERE d.parent_id = %(id)s 
 ORDER BY d.child_id LIMIT %(limit)s

-- admin.jobs.STATE_AND_KIND
SELECT state, kind FROM stepfast_job WHERE id = %(id)s UNION ALL SELECT state, kind FROM stepfast_archive WHERE id = %(id)s

-- admin.jobs.STATE_AND_QUEUE
SELECT state, queue FROM stepfast_job WHERE id = %(id)s
UNION ALL SELECT state, queue FROM stepfast_archive WHERE id = %(id)s

-- admin.jobs.HASTEN_JOB
UPDATE stepfast_job SET state = CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END, ready_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND state = 'scheduled'

-- admin.masks.KNOWN_RULES
SELECT id FROM stepfast_mask ORDER BY id

-- admin.masks.FRESH_RULES
SELECT id FROM stepfast_mask WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND seen_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s

-- admin.masks.DECLARE_RULE
INSERT INTO stepfast_mask (id, seen_at) VALUES (%(id)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) ON CONFLICT DO NOTHING

-- admin.masks.CONFIRM_RULE
UPDATE stepfast_mask SET seen_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s

-- admin.masks.FORGET_RULES
DELETE FROM stepfast_mask WHERE seen_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s

-- admin.outbox.NEWEST_MESSAGES
SELECT id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error FROM stepfast_outbox WHERE (%(any_channel)s = 1 OR channel = %(channel)s) AND (%(any_state)s = 1 OR state = %(state)s) ORDER BY id DESC LIMIT %(limit)s

-- admin.outbox.WAITING_MESSAGES
SELECT id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error FROM stepfast_outbox WHERE state = 'waiting' AND (%(any_channel)s = 1 OR channel = %(channel)s) AND (%(any_state)s = 1 OR state = %(state)s) ORDER BY id DESC LIMIT %(limit)s

-- admin.outbox.ENDED_MESSAGES
SELECT id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error FROM stepfast_outbox WHERE state = %(state)s AND ended_at IS NOT NULL AND (%(any_channel)s = 1 OR channel = %(channel)s) AND (%(any_state)s = 1 OR state = %(state)s)
 ORDER BY ended_at DESC, id DESC LIMIT %(limit)s

-- admin.outbox.MESSAGES_OF_JOB
SELECT id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error FROM stepfast_outbox WHERE job_id = %(job_id)s AND (%(any_channel)s = 1 OR channel = %(channel)s) AND (%(any_state)s = 1 OR state = %(state)s) ORDER BY id DESC LIMIT %(limit)s

-- admin.outbox.SHOW_MESSAGE
SELECT id, state, channel, address, attempts, created_at, due_at, ended_at, job_id, last_error, destination, dedupe_key, trace, headers, body FROM stepfast_outbox WHERE id = %(id)s

-- admin.outbox.UNSENT_BY_DESTINATION
SELECT destination, min(channel), min(address), sum(waiting), sum(dead)
  FROM (SELECT destination, channel, address, 1 AS waiting, 0 AS dead
          FROM stepfast_outbox WHERE state = 'waiting'
         UNION ALL
        SELECT destination, channel, address, 0, 1
          FROM stepfast_outbox WHERE state = 'dead' AND ended_at IS NOT NULL) unsent
 GROUP BY destination ORDER BY destination LIMIT %(limit)s

-- admin.outbox.FIRST_WAITING
SELECT created_at, due_at, last_error FROM stepfast_outbox
 WHERE state = 'waiting' AND destination = %(destination)s ORDER BY seq LIMIT 1

-- admin.outbox.LIST_ALERTS
SELECT id, severity, title, raised, untold, first_at, last_at, notified_at, notify_at, body, message_ids,
       CASE WHEN quiet_until > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 1 ELSE 0 END
  FROM stepfast_alert ORDER BY last_at DESC LIMIT %(limit)s

-- admin.outbox.MESSAGE_STATES
SELECT id, state, last_error FROM stepfast_outbox WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- admin.outbox.MESSAGE_STATE
SELECT state FROM stepfast_outbox WHERE id = %(id)s FOR UPDATE

-- admin.outbox.REVIVE_MESSAGE
UPDATE stepfast_outbox
   SET state = 'waiting', attempts = 0, since_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), due_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), ended_at = NULL
 WHERE id = %(id)s AND state = 'dead'

-- admin.outbox.REVIVE_MESSAGES
UPDATE stepfast_outbox
   SET state = 'waiting', attempts = 0, since_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), due_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), ended_at = NULL
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'dead'

-- admin.outbox.HASTEN_MESSAGE
UPDATE stepfast_outbox SET due_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND state = 'waiting' AND due_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- admin.outbox.PURGE_MESSAGES
DELETE FROM stepfast_outbox WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'dead'

-- admin.outbox.CHOOSE_DEAD
   SELECT id FROM stepfast_outbox WHERE 
   state = 'dead' AND ended_at <= %(until)s AND (%(any_channel)s = 1 OR channel = %(channel)s)
      AND (%(any_destination)s = 1 OR destination = %(destination)s)
ORDER BY ended_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- admin.outbox.COUNT_DEAD
SELECT count(*) FROM stepfast_outbox WHERE 
    state = 'dead' AND ended_at <= %(until)s AND (%(any_channel)s = 1 OR channel = %(channel)s)
       AND (%(any_destination)s = 1 OR destination = %(destination)s)

-- admin.quarantine.LIST_ENTRIES
SELECT id, feed, item_id, stage, state, code, message, hits, mapper_version, run_id, first_seen_at, last_seen_at,
       note FROM stepfast_quarantine
 WHERE (%(any_feed)s = 1 OR feed = %(feed)s) AND (%(any_stage)s = 1 OR stage = %(stage)s) AND (%(any_code)s = 1 OR code = %(code)s)
   AND (%(any_run_id)s = 1 OR run_id = %(run_id)s) AND (%(any_id)s = 1 OR id = %(id)s) AND (%(everything)s = 1 OR state IN ('open', 'replaying'))
 ORDER BY id DESC LIMIT %(limit)s

-- admin.quarantine.ENTRY_GROUPS
SELECT feed, stage, code, count(*), min(first_seen_at), max(last_seen_at), min(message) FROM stepfast_quarantine
 WHERE (%(any_feed)s = 1 OR feed = %(feed)s) AND (%(any_stage)s = 1 OR stage = %(stage)s) AND (%(any_code)s = 1 OR code = %(code)s)
   AND (%(any_run_id)s = 1 OR run_id = %(run_id)s) AND (%(any_id)s = 1 OR id = %(id)s) AND (%(everything)s = 1 OR state IN ('open', 'replaying'))
 GROUP BY feed, stage, code ORDER BY count(*) DESC, feed, stage, code LIMIT %(limit)s

-- admin.quarantine.SHOW_ENTRY
SELECT id, feed, item_id, stage, state, code, message, hits, mapper_version, run_id, first_seen_at, last_seen_at,
           note, content_hash, payload FROM stepfast_quarantine WHERE id = %(id)s

-- admin.quarantine.CHOOSE_ENTRIES
SELECT id, feed FROM stepfast_quarantine
 WHERE id > %(after)s AND state IN ('open', 'replaying') AND (%(any_feed)s = 1 OR feed = %(feed)s) AND (%(any_stage)s = 1 OR stage = %(stage)s) AND (%(any_code)s = 1 OR code = %(code)s)
   AND (%(any_run_id)s = 1 OR run_id = %(run_id)s) AND (%(any_id)s = 1 OR id = %(id)s)
 ORDER BY id LIMIT %(limit)s
FOR UPDATE

-- admin.quarantine.COUNT_ENTRIES
SELECT count(*) FROM stepfast_quarantine WHERE state IN ('open', 'replaying') AND (%(any_feed)s = 1 OR feed = %(feed)s) AND (%(any_stage)s = 1 OR stage = %(stage)s) AND (%(any_code)s = 1 OR code = %(code)s)
       AND (%(any_run_id)s = 1 OR run_id = %(run_id)s) AND (%(any_id)s = 1 OR id = %(id)s)

-- admin.quarantine.ENTRY_STATE
SELECT state FROM stepfast_quarantine WHERE id = %(id)s

-- admin.quarantine.REPLAY_ENTRY
UPDATE stepfast_quarantine SET state = 'replaying', note = %(note)s
 WHERE id = %(id)s AND state IN ('open', 'replaying')

-- admin.quarantine.DISCARD_ENTRY
UPDATE stepfast_quarantine SET state = 'discarded', note = %(note)s
 WHERE id = %(id)s AND state IN ('open', 'replaying')

-- admin.quarantine.QUEUE_OF_FEED
SELECT j.queue, r.started_at FROM stepfast_run r JOIN stepfast_job j ON j.id = r.job_id WHERE r.feed = %(feed)s
 UNION ALL
SELECT a.queue, r.started_at FROM stepfast_run r JOIN stepfast_archive a ON a.id = r.job_id WHERE r.feed = %(feed)s
 ORDER BY 2 DESC LIMIT 1

-- admin.rows.NOW
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- admin.run_reports.LIST_RUNS
   SELECT 
   r.id, r.feed, r.kind, r.scope, r.state, r.stalled_in, r.partitions, r.completed, r.failed, r.unverified, r.estimate,
   r.seen, r.rejected, r.applied, r.quarantined, r.gone, r.differences,
   r.requests + (SELECT COALESCE(sum(p.requests), 0) FROM stepfast_partition p WHERE p.run_id = r.id),
   r.forced, r.most_rows, r.window_from, r.window_to, r.watermark_before, r.watermark_after, r.started_at, r.planned_at,
   r.fetched_at, r.completed_at, r.ended_at, r.updated_at, r.reason
FROM stepfast_run r
    WHERE (%(any_feed)s = 1 OR r.feed = %(feed)s) AND (%(active)s = 0 OR r.ended_at IS NULL)
    ORDER BY r.started_at DESC, r.id DESC LIMIT %(limit)s

-- admin.run_reports.ONE_RUN
SELECT 
    r.id, r.feed, r.kind, r.scope, r.state, r.stalled_in, r.partitions, r.completed, r.failed, r.unverified, r.estimate,
    r.seen, r.rejected, r.applied, r.quarantined, r.gone, r.differences,
    r.requests + (SELECT COALESCE(sum(p.requests), 0) FROM stepfast_partition p WHERE p.run_id = r.id),
    r.forced, r.most_rows, r.window_from, r.window_to, r.watermark_before, r.watermark_after, r.started_at, r.planned_at,
    r.fetched_at, r.completed_at, r.ended_at, r.updated_at, r.reason
 FROM stepfast_run r WHERE r.id = %(id)s

-- admin.run_reports.NEWEST_RUN
SELECT id FROM stepfast_run WHERE %(any_feed)s = 1 OR feed = %(feed)s
 ORDER BY CASE WHEN %(prefer_active)s = 1 AND ended_at IS NOT NULL THEN 1 ELSE 0 END, started_at DESC, id DESC LIMIT 1

-- admin.run_reports.RUNS_BEGINNING_WITH
SELECT id, feed FROM stepfast_run WHERE id >= %(first)s AND id < %(beyond)s ORDER BY id DESC LIMIT %(limit)s

-- admin.run_reports.LIST_PARTITIONS
    SELECT p.run_id, r.feed, p.number, p.name, p.state, p.epoch, p.seen, p.counted, p.estimate, p.rejected, p.requests,
           p.next_offset, p.job_id, j.state, CASE WHEN j.state = 'scheduled' THEN j.ready_at END, p.worker_id,

    CASE WHEN p.state IN ('ready', 'running') THEN CASE WHEN j.failures + j.crashes > 0 THEN j.last_error
                                                        WHEN p.troubled_at >= p.updated_at THEN p.last_error END
         WHEN p.state <> 'done' THEN p.last_error END
, CASE WHEN 
    (p.state IN ('ready', 'running') AND r.ended_at IS NULL
     AND (j.id IS NULL OR (j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))))
 THEN 1 ELSE 0 END, p.started_at, p.updated_at, p.ended_at

      FROM stepfast_partition p
      JOIN stepfast_run r ON r.id = p.run_id
      LEFT JOIN stepfast_job j ON j.id = p.job_id
      LEFT JOIN stepfast_worker w ON w.incarnation = j.owner

     WHERE (%(any_run)s = 1 OR p.run_id = %(run_id)s) AND (%(failed)s = 0 OR p.state = 'failed') AND (%(stuck)s = 0 OR 
    (p.state IN ('ready', 'running') AND r.ended_at IS NULL
     AND (j.id IS NULL OR (j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))))
)
     ORDER BY r.started_at DESC, p.run_id DESC, p.number LIMIT %(limit)s

-- admin.run_reports.FAILED_PARTITIONS
SELECT number, last_error FROM stepfast_partition WHERE run_id = %(id)s AND state = 'failed' ORDER BY number

-- admin.run_status.PARTITION_STATES
SELECT state, count(*) FROM stepfast_partition WHERE run_id = %(id)s GROUP BY state

-- admin.run_status.ORPHANED_PARTITIONS
SELECT p.number 
      FROM stepfast_partition p
      JOIN stepfast_run r ON r.id = p.run_id
      LEFT JOIN stepfast_job j ON j.id = p.job_id
      LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE p.run_id = %(id)s AND 
    (p.state IN ('ready', 'running') AND r.ended_at IS NULL
     AND (j.id IS NULL OR (j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))))
 AND j.id IS NULL ORDER BY p.number

-- admin.run_status.PARTITIONS_MOVED_AT
SELECT max(updated_at) FROM stepfast_partition WHERE run_id = %(id)s

-- admin.run_status.LIVE_JOBS
    SELECT j.queue, j.state, count(*), min(j.ready_at), max(j.last_error), max(j.held_by),
           sum(CASE WHEN j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 1 ELSE 0 END)
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner

      JOIN (SELECT p.job_id AS id FROM stepfast_partition p WHERE p.run_id = %(run_id)s
            UNION SELECT r.job_id FROM stepfast_run r WHERE r.id = %(run_id)s
            UNION SELECT s.id FROM stepfast_job s WHERE s.id > %(first)s AND s.id < %(beyond)s) its ON its.id = j.id
GROUP BY j.queue, j.state

-- admin.run_status.DEAD_JOBS
SELECT count(*), max(j.last_error), max(j.queue) FROM stepfast_archive j
      JOIN (SELECT p.job_id AS id FROM stepfast_partition p WHERE p.run_id = %(run_id)s
            UNION SELECT r.job_id FROM stepfast_run r WHERE r.id = %(run_id)s
            UNION SELECT s.id FROM stepfast_archive s WHERE s.id > %(first)s AND s.id < %(beyond)s) its ON its.id = j.id
WHERE j.state = 'dead'

-- admin.run_status.QUEUE_OF_ENDED_JOB
SELECT queue FROM stepfast_archive WHERE id = %(id)s

-- admin.run_status.PAUSED_QUEUE
SELECT q.paused_at, q.note,
       (SELECT max(a.who) FROM stepfast_audit a
         WHERE a.subject = q.id AND a.what = 'queue.pause' AND a.at >= q.paused_at)
  FROM stepfast_queue q WHERE q.id = %(id)s AND q.paused_at IS NOT NULL

-- admin.run_status.QUEUES_OF_WORKERS
SELECT queues FROM stepfast_worker WHERE state = 'alive' AND alive_until >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- admin.run_status.COUNT_DEBTS
SELECT count(*), COALESCE(sum(CASE WHEN tries >= %(tries)s THEN 1 ELSE 0 END), 0)
  FROM stepfast_debt WHERE feed = %(feed)s AND state = 'open'

-- admin.run_status.WAITING_EXPORT
SELECT last_error FROM stepfast_outbox WHERE destination = %(destination)s AND state <> 'sent' ORDER BY seq DESC LIMIT 1

-- admin.run_status.COUNT_PENDING
SELECT count(*) FROM stepfast_raw WHERE feed = %(feed)s AND pending = 1

-- admin.run_status.NOTES_OF_SHARDS
SELECT id, state, progress_note FROM stepfast_job WHERE id > %(first)s AND id < %(beyond)s

-- admin.run_status.COUNT_PAGES
SELECT count(*) 
      FROM stepfast_partition p JOIN stepfast_page g ON g.partition_id = p.id
     WHERE p.run_id = %(id)s AND g.request_offset IS NOT NULL

-- admin.run_status.NTH_SLOWEST_PAGE
SELECT g.milliseconds, p.number, g.request_offset 
  FROM stepfast_partition p JOIN stepfast_page g ON g.partition_id = p.id
 WHERE p.run_id = %(id)s AND g.request_offset IS NOT NULL

 ORDER BY g.milliseconds DESC, p.number, g.epoch, g.seq LIMIT 1 OFFSET %(skipped)s

-- admin.run_status.WRITTEN_LATELY
SELECT number, name, state, seen, COALESCE(counted, estimate), requests, last_error FROM stepfast_partition
 WHERE run_id = %(id)s AND updated_at >= %(since)s ORDER BY number

-- admin.schedules.RECENT_TICKS
SELECT k.id, k.job_id, COALESCE(j.state, a.state),
       CASE WHEN COALESCE(j.created_at, a.created_at) < k.until_at - %(remembered)s THEN 1 ELSE 0 END
  FROM stepfast_key k LEFT JOIN stepfast_job j ON j.id = k.job_id LEFT JOIN stepfast_archive a ON a.id = k.job_id
 WHERE k.id > %(first)s AND k.id < %(last)s
 ORDER BY k.id DESC LIMIT %(limit)s

-- admin.statistics.ENDED_BY_KIND
SELECT kind, state, count(*) FROM stepfast_archive
 WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(span)s AND (%(any_kind)s = 1 OR kind = %(kind)s)
 GROUP BY kind, state

-- admin.statistics.TIMES_BY_KIND
SELECT kind, avg(took), max(CASE WHEN place >= many * 0.5 AND place < many * 0.5 + 1 THEN took END),
       max(CASE WHEN place >= many * 0.95 AND place < many * 0.95 + 1 THEN took END), max(took), avg(waited)
  FROM (SELECT kind, finished_at - leased_at AS took, leased_at - ready_at AS waited,
               row_number() OVER (PARTITION BY kind ORDER BY finished_at - leased_at) AS place,
               count(*) OVER (PARTITION BY kind) AS many
          FROM stepfast_archive
         WHERE state = 'done' AND finished_at >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(span)s AND leased_at BETWEEN 0 AND finished_at
               AND (%(any_kind)s = 1 OR kind = %(kind)s)) AS timed
 GROUP BY kind

-- admin.statistics.FAILED_BY_KIND
SELECT kind, error_group, sum(CASE state WHEN 'dead' THEN 1 ELSE 0 END), 0,
       sum(CASE state WHEN 'done' THEN 1 ELSE 0 END), max(finished_at), max(id)
  FROM stepfast_archive
 WHERE state IN ('done', 'dead') AND finished_at >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(span)s AND error_group IS NOT NULL AND (%(any_kind)s = 1 OR kind = %(kind)s)
 GROUP BY kind, error_group

-- admin.statistics.RETRYING_BY_KIND
SELECT kind, error_group, 0, count(*), 0, max(updated_at), max(id)
  FROM stepfast_job
 WHERE updated_at >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(span)s AND error_group IS NOT NULL AND (%(any_kind)s = 1 OR kind = %(kind)s)
 GROUP BY kind, error_group

-- admin.statistics.PAUSED_QUEUES
SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL

-- admin.statistics.COUNT_WORKERS
SELECT count(*) FROM stepfast_worker WHERE state = 'alive' AND alive_until >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- admin.statistics.DEAD_MESSAGES_BY_QUEUE
SELECT transport, queue, count(*) FROM stepfast_dead_message GROUP BY transport, queue

-- admin.statistics.UNSENT_MESSAGES
SELECT state, count(*), min(created_at) FROM stepfast_outbox
 WHERE state IN ('waiting', 'dead') GROUP BY state

-- admin.statistics.LIST_LIMITS
SELECT l.id, l.slots, l.arrival_at, l.gap, l.tolerance, l.due_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT),
       (SELECT count(*) FROM stepfast_slot s WHERE s.limit_id = l.id),
       (SELECT count(*) FROM stepfast_job j WHERE j.held_by = l.id AND j.state = 'held')
  FROM stepfast_limit l
 WHERE %(everything)s = 1 OR l.due_at IS NOT NULL OR EXISTS (SELECT 1 FROM stepfast_slot s WHERE s.limit_id = l.id)
 ORDER BY CASE WHEN l.due_at IS NULL THEN 1 ELSE 0 END, l.id
 LIMIT %(limit)s

-- admin.sweeps.LIST_SWEEPS
SELECT id, feed, state, gone, started_at, frontier FROM stepfast_run
 WHERE kind = 'full' AND (%(any_feed)s = 1 OR feed = %(feed)s) AND frontier LIKE '{"type":"sweep"%%'
 ORDER BY started_at DESC, id DESC LIMIT %(limit)s

-- admin.sweeps.QUEUE_OF_JOB
SELECT queue FROM stepfast_job WHERE id = %(id)s

-- admin.sweeps.COUNT_BACK
UPDATE stepfast_run SET gone = gone - %(back)s WHERE id = %(id)s AND gone >= %(back)s

-- admin.tasks.LATEST_TASKS
SELECT t.id, t.client, t.task_id, t.task_type, t.source, t.received_at,
       COALESCE(j.state, a.state, 'forgotten'), COALESCE(j.last_error, a.last_error), a.finished_at
  FROM stepfast_task t LEFT JOIN stepfast_job j ON j.id = t.id LEFT JOIN stepfast_archive a ON a.id = t.id

 WHERE (%(any_client)s = 1 OR t.client = %(client)s)
   AND (%(any_state)s = 1 OR COALESCE(j.state, a.state, 'forgotten') = %(state)s)
 ORDER BY t.received_at DESC, t.id DESC LIMIT %(limit)s

-- admin.tasks.ONE_TASK
SELECT t.id, t.client, t.task_id, t.task_type, t.source, t.received_at,
       COALESCE(j.state, a.state, 'forgotten'), COALESCE(j.last_error, a.last_error), a.finished_at
  FROM stepfast_task t LEFT JOIN stepfast_job j ON j.id = t.id LEFT JOIN stepfast_archive a ON a.id = t.id

 WHERE (t.id = %(id)s OR t.task_id = %(id)s) AND (%(any_client)s = 1 OR t.client = %(client)s)
 ORDER BY t.received_at DESC, t.id DESC LIMIT 1

-- admin.tasks.TASK_RESULT
SELECT result FROM stepfast_archive WHERE id = %(id)s

-- admin.tasks.END_WEBHOOKS
SELECT id, state, address, attempts, last_error FROM stepfast_outbox
 WHERE job_id = %(id)s AND dedupe_key LIKE 'task-end:%%' ORDER BY seq

-- admin.tasks.RECEIVED_ENDS
SELECT id, status, received_at FROM stepfast_received
 WHERE task_id = %(task_id)s AND client = %(client)s ORDER BY received_at, id LIMIT 50

-- admin.watermarks.LIST_WATERMARKS
   SELECT f.id, f.watermark, f.version, f.last_run,
          (SELECT r.completed_at FROM stepfast_run r WHERE r.id = f.last_run),
          (SELECT min(r.id) FROM stepfast_run r WHERE r.active_feed = f.id),
          (SELECT count(*) FROM stepfast_debt d WHERE d.feed = f.id AND d.state = 'open'),
          f.export_to, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + f.skew
     FROM stepfast_feed f
ORDER BY f.id LIMIT %(limit)s

-- admin.watermarks.ONE_WATERMARK
   SELECT f.id, f.watermark, f.version, f.last_run,
          (SELECT r.completed_at FROM stepfast_run r WHERE r.id = f.last_run),
          (SELECT min(r.id) FROM stepfast_run r WHERE r.active_feed = f.id),
          (SELECT count(*) FROM stepfast_debt d WHERE d.feed = f.id AND d.state = 'open'),
          f.export_to, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + f.skew
     FROM stepfast_feed f
WHERE f.id = %(feed)s

-- admin.watermarks.KNOWN_FEEDS
SELECT id FROM stepfast_feed WHERE updated_at > 0 ORDER BY id

-- admin.workers.LIST_WORKERS
SELECT worker_id, CASE WHEN state = 'alive' AND alive_until >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 1 ELSE 0 END, state, host, pid, guardian_pid,
       incarnation, queues, concurrency, active, COALESCE(active_ids, ''), lease, started_at, beat_at, alive_until, ended_at
  FROM stepfast_worker
 WHERE state = 'alive' OR %(everyone)s = 1
 ORDER BY started_at, incarnation

-- admin.workers.LIST_LEASES
    SELECT j.id, j.kind, j.queue, j.step, j.failures + j.crashes + 1, j.progress, COALESCE(j.leased_by, w.worker_id),
           CASE WHEN j.owner <> %(manual)s THEN j.owner END, j.leased_at, COALESCE(j.lease_until, w.alive_until), 
    CASE WHEN j.owner = %(manual)s THEN CASE WHEN j.lease_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 0 ELSE 1 END
, j.cancel_at
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE j.state = 'leased' AND (%(all_of_them)s = 1 OR 
    CASE WHEN j.owner = %(manual)s THEN CASE WHEN j.lease_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 0 ELSE 1 END
 = %(expired)s)
     ORDER BY j.leased_at, j.id LIMIT %(limit)s

-- admin.workers.COUNT_LEASES
    SELECT COALESCE(sum(1 - 
    CASE WHEN j.owner = %(manual)s THEN CASE WHEN j.lease_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 0 ELSE 1 END
), 0), COALESCE(sum(
    CASE WHEN j.owner = %(manual)s THEN CASE WHEN j.lease_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 1 ELSE 0 END
         WHEN w.state = 'alive' AND w.alive_until >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 0 ELSE 1 END
), 0)
      FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE j.state = 'leased'

-- admin.workers.LIVE_BY_QUEUE
SELECT queue, state, count(*), min(ready_at) FROM stepfast_job GROUP BY queue, state

-- admin.workers.DEAD_BY_QUEUE
SELECT queue, 'dead', count(*), NULL FROM stepfast_archive WHERE state = 'dead' GROUP BY queue

-- admin.workers.QUEUE_USED
SELECT 1 WHERE EXISTS (SELECT 1 FROM stepfast_job WHERE queue = %(queue)s)
            OR EXISTS (SELECT 1 FROM stepfast_archive WHERE queue = %(queue)s)

-- admin.workers.KNOWN_QUEUES
SELECT id, paused_at, note FROM stepfast_queue

-- admin.workers.KNOW_QUEUE
INSERT INTO stepfast_queue (id) VALUES (%(id)s) ON CONFLICT DO NOTHING

-- admin.workers.PAUSE_QUEUE
UPDATE stepfast_queue SET paused_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), note = %(note)s WHERE id = %(id)s AND paused_at IS NULL

-- admin.workers.REMARK_QUEUE
UPDATE stepfast_queue SET note = %(note)s WHERE id = %(id)s AND paused_at IS NOT NULL

-- admin.workers.RESUME_QUEUE
UPDATE stepfast_queue SET paused_at = NULL, note = NULL WHERE id = %(id)s AND paused_at IS NOT NULL

-- callbacks.CALLBACK_TIME
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- database.lending.IS_READ_ONLY
SELECT current_setting('transaction_read_only') = 'on'

-- database.lending.IDENTIFY_DATABASE
SELECT current_database() || ', table ' || COALESCE(CAST(CAST(to_regclass('stepfast_job') AS OID) AS TEXT), 'missing'), 0

-- database.lending.READ_INSTALLATION
SELECT name FROM stepfast_installation WHERE id = 1

-- database.lending.READ_LENT_INSTALLATION
SELECT name FROM stepfast_installation WHERE id = 1

-- database.migrate.SCHEMA_TABLE
CREATE TABLE IF NOT EXISTS stepfast_schema (
    component VARCHAR(128) COLLATE "C" NOT NULL,
    version INTEGER NOT NULL,
    name VARCHAR(100) NOT NULL,
    applied_at BIGINT NOT NULL,
    PRIMARY KEY (component, version)
)

-- database.migrate.COMPONENT_VERSION
SELECT max(version) FROM stepfast_schema WHERE component = %(component)s

-- database.migrate.RECORD_MIGRATION
INSERT INTO stepfast_schema (component, version, name, applied_at) VALUES (%(component)s, %(version)s, %(name)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))

-- database.relations.FIND_RELATIONS
SELECT c.relname, CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'i' THEN 'index'
                  WHEN 'I' THEN 'index' WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type' ELSE 'table' END,
       CASE c.relkind WHEN 'v' THEN pg_get_viewdef(c.oid) END, NULL
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = current_schema() AND c.relname = ANY(CAST(%(names)s AS TEXT[]))
UNION ALL
SELECT t.typname, 'type', NULL, NULL FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE n.nspname = current_schema() AND t.typrelid = 0 AND t.typname = ANY(CAST(%(names)s AS TEXT[]))

-- database.tables.COLUMNS
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
 WHERE attrelid = to_regclass(COALESCE(quote_ident(CAST(%(folder)s AS TEXT)) || '.', '') || quote_ident(CAST(%(table)s AS TEXT)))
   AND attnum > 0 AND NOT attisdropped
 ORDER BY attnum

-- database.tables.TYPES
SELECT attname, format_type(atttypid, -1) FROM pg_attribute
 WHERE attrelid = to_regclass(COALESCE(quote_ident(CAST(%(folder)s AS TEXT)) || '.', '') || quote_ident(CAST(%(table)s AS TEXT)))
   AND attnum > 0 AND NOT attisdropped
 ORDER BY attnum

-- database.tables.UNIQUE
SELECT i.indexrelid, a.attname
  FROM pg_index i
  JOIN LATERAL unnest(CAST(i.indkey AS SMALLINT[])) WITH ORDINALITY AS k (attnum, place) ON k.place <= i.indnkeyatts
  LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
 WHERE i.indrelid = to_regclass(COALESCE(quote_ident(CAST(%(folder)s AS TEXT)) || '.', '') || quote_ident(CAST(%(table)s AS TEXT)))
   AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL

-- database.tables.COLLATIONS
-- (done by the statement before it)

-- database.tables.TABLE_NAMES
SELECT table_name FROM information_schema.tables WHERE table_schema = ANY (current_schemas(false)) ORDER BY table_name

-- database.views.CHOSEN_NAMES
SELECT id, names FROM stepfast_view_names

-- database.views.CHANGE_NAMES
UPDATE stepfast_view_names SET names = %(names)s WHERE id = %(component)s

-- database.views.REMEMBER_NAMES
INSERT INTO stepfast_view_names (id, names) VALUES (%(component)s, %(names)s) ON CONFLICT DO NOTHING

-- database.wakeup.NOTIFY
SELECT pg_notify('stepfast', %(queue)s)

-- jobs.archive.ARCHIVE_JOBS
INSERT INTO stepfast_archive (id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, committed_fence, payload, state, finished_at)
SELECT id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, fence, payload, %(state)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
  FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[]))
ON CONFLICT DO NOTHING

-- jobs.archive.REMOVE_JOBS
DELETE FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.archive.JOBS_WITH_DEPENDANTS
SELECT id FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND has_dependants = 1

-- jobs.archive.AWAITED_PARENTS
SELECT DISTINCT parent_id FROM stepfast_dependency WHERE parent_id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'open'

-- jobs.archive.UNMET_CHILDREN
SELECT DISTINCT child_id FROM stepfast_dependency WHERE parent_id = ANY(CAST(%(ids)s AS TEXT[])) AND state IN ('open', 'broken')

-- jobs.archive.LOCK_CHILDREN
SELECT id, queue, has_dependants FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'waiting'
 ORDER BY id FOR UPDATE

-- jobs.archive.OPEN_EDGES_TO
SELECT child_id, parent_id, on_dead FROM stepfast_dependency WHERE parent_id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'open'
 ORDER BY parent_id, child_id

-- jobs.archive.MEET_EDGES
UPDATE stepfast_dependency SET state = 'met' WHERE parent_id = ANY(CAST(%(ids)s AS TEXT[])) AND state IN ('open', 'broken')

-- jobs.archive.MEET_EDGES_ANYWAY
UPDATE stepfast_dependency SET state = 'met' WHERE parent_id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'open' AND on_dead = 'run'

-- jobs.archive.BREAK_EDGES
UPDATE stepfast_dependency SET state = 'broken'
 WHERE parent_id = ANY(CAST(%(ids)s AS TEXT[])) AND child_id = ANY(CAST(%(children)s AS TEXT[])) AND state = 'open'

-- jobs.archive.STILL_WAITING
SELECT DISTINCT child_id FROM stepfast_dependency WHERE child_id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'open'

-- jobs.archive.RELEASE_CHILDREN
UPDATE stepfast_job
   SET state = CASE WHEN ready_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 'scheduled' ELSE CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END END,
       ready_at = CASE WHEN ready_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN ready_at ELSE CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) END, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'waiting'

-- jobs.archive.FAIL_CHILDREN
UPDATE stepfast_job SET fence = %(fence)s, error_group = %(error_group)s, last_error = %(reason)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'waiting'

-- jobs.archive.NEEDED_PARENTS
SELECT DISTINCT d.parent_id FROM stepfast_dependency d JOIN stepfast_job c ON c.id = d.child_id
 WHERE d.parent_id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.cancel.LOCK_JOBS_TO_CANCEL
SELECT id, state FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[])) ORDER BY id FOR UPDATE

-- jobs.cancel.CANCEL_WAITING
UPDATE stepfast_job SET fence = %(fence)s, error_group = %(error_group)s, last_error = %(reason)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state IN ('scheduled', 'ready', 'suspect', 'held', 'waiting')

-- jobs.cancel.ASK_TO_STOP
UPDATE stepfast_job SET cancel_at = COALESCE(cancel_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)), updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'leased'

-- jobs.cancel.LOG_CANCELLATION
INSERT INTO stepfast_log (job_id, at, level, step, message)
SELECT id, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), 'warning', step, %(message)s FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.commit.LOCK_LEASED_JOB
SELECT id FROM stepfast_job WHERE id = %(id)s AND fence = %(fence)s FOR UPDATE

-- jobs.commit.MOVE_DONE_JOB
WITH mine AS (
    DELETE FROM stepfast_job WHERE id = %(id)s AND fence = %(fence)s
    RETURNING id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, fence, payload, has_dependants
), kept AS (
    INSERT INTO stepfast_archive (id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, committed_fence, payload, result, state, finished_at)
    SELECT id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, fence, payload, CAST(%(result)s AS TEXT), 'done', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) FROM mine
    ON CONFLICT DO NOTHING
)
SELECT id, has_dependants FROM mine

-- jobs.commit.REMOVE_DONE_JOB
-- (done by the statement before it)

-- jobs.commit.REMOVE_AWAITED_JOB
-- (done by the statement before it)

-- jobs.commit.MOVE_DONE_JOBS
WITH mine AS (
    DELETE FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND fence = %(fence)s
    RETURNING id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, fence, payload, has_dependants
), kept AS (
    INSERT INTO stepfast_archive (id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, committed_fence, payload, result, state, finished_at)
    SELECT id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, fence, payload, CAST(NULL AS TEXT), 'done', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) FROM mine
    ON CONFLICT DO NOTHING
)
SELECT id, has_dependants FROM mine

-- jobs.commit.MOVE_DONE_JOBS_WITH_RESULTS
WITH mine AS (
    DELETE FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND fence = %(fence)s
    RETURNING id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, fence, payload, has_dependants
), kept AS (
    INSERT INTO stepfast_archive (id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, committed_fence, payload, result, state, finished_at)
    SELECT id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, progress, progress_note, error_group, last_error, cursor_json, fence, payload, CAST(%(results)s AS JSONB) ->> id, 'done', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) FROM mine
    ON CONFLICT DO NOTHING
)
SELECT id, has_dependants FROM mine

-- jobs.commit.COUNT_LEASED_JOBS
SELECT count(*), COALESCE(sum(has_dependants), 0) FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND fence = %(fence)s

-- jobs.commit.LOCK_LEASED_JOBS
SELECT id, has_dependants FROM stepfast_job
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND fence = %(fence)s
 ORDER BY id
FOR UPDATE

-- jobs.commit.WRITE_RESULT
UPDATE stepfast_archive SET result = %(result)s WHERE id = %(id)s AND committed_fence = %(fence)s

-- jobs.commit.CONTINUE_JOB
UPDATE stepfast_job
   SET state = CASE WHEN %(delay)s > 0 THEN 'scheduled' ELSE 'ready' END, ready_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(delay)s,
       owner = NULL, leased_by = NULL, lease_until = NULL, cursor_json = %(cursor)s, step = step + 1,
       failures = 0, crashes = 0, error_group = NULL,
       fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND fence = %(fence)s AND cancel_at IS NULL

-- jobs.commit.CONTINUE_RESERVED_JOB
UPDATE stepfast_job
   SET state = 'ready', ready_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(delay)s,
       owner = NULL, leased_by = NULL, lease_until = NULL, cursor_json = %(cursor)s, step = step + 1,
       failures = 0, crashes = 0, error_group = NULL,
       fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND fence = %(fence)s AND cancel_at IS NULL

-- jobs.commit.CONTINUE_JOB_HERE
UPDATE stepfast_job
   SET cursor_json = %(cursor)s, step = step + 1, failures = 0, crashes = 0, error_group = NULL,
       ready_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), leased_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND fence = %(fence)s AND cancel_at IS NULL

-- jobs.commit.ADVANCE_CANCELLED_JOB
UPDATE stepfast_job
   SET cursor_json = %(cursor)s, step = step + 1, failures = 0, crashes = 0, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND fence = %(fence)s

-- jobs.commit.MORE_URGENT_WORK
SELECT 1 WHERE EXISTS (SELECT 1 FROM stepfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL)
            OR EXISTS (SELECT 1 FROM stepfast_job WHERE queue = %(queue)s AND state = 'ready' AND priority > %(priority)s)

-- jobs.commit.SNOOZE_JOB
UPDATE stepfast_job
   SET state = CASE WHEN %(delay)s > 0 THEN 'scheduled' ELSE CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END END, ready_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(delay)s,
       owner = NULL, leased_by = NULL, lease_until = NULL,
       fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND fence = %(fence)s AND cancel_at IS NULL

-- jobs.commit.RETRY_JOB
UPDATE stepfast_job
   SET state = CASE WHEN %(delay)s > 0 THEN 'scheduled' WHEN %(charge)s > 0 OR %(crash)s > 0 THEN 'ready' ELSE CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END END,
       ready_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(delay)s,
       owner = NULL, leased_by = NULL, lease_until = NULL, failures = failures + %(charge)s,
       crashes = crashes + %(crash)s, last_error = %(error)s,
       error_group = CASE WHEN %(charge)s = 0 AND %(crash)s = 0 AND error_group = 'Lease expired - worker crashed or timed out' THEN error_group ELSE %(error_group)s END,
       fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND fence = %(fence)s AND cancel_at IS NULL

-- jobs.commit.GIVE_BACK_JOBS
UPDATE stepfast_job
   SET state = CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END, owner = NULL, leased_by = NULL, lease_until = NULL,
       fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND fence = %(fence)s AND cancel_at IS NULL

-- jobs.commit.LOCK_CANCELLED_JOBS
SELECT id FROM stepfast_job
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND fence = %(fence)s AND cancel_at IS NOT NULL
 ORDER BY id
FOR UPDATE

-- jobs.commit.RECORD_FAILURE
UPDATE stepfast_job
   SET failures = failures + %(charge)s, crashes = crashes + %(crash)s, last_error = %(error)s,
       error_group = %(error_group)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND fence = %(fence)s

-- jobs.commit.LIVE_FENCES
SELECT id, fence, COALESCE(committed_fence, 0) FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[])) ORDER BY id FOR UPDATE

-- jobs.commit.ARCHIVED_FENCES
SELECT id, COALESCE(committed_fence, 0) FROM stepfast_archive WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.dead_letters.CHOOSE_DEAD
SELECT id, queue, finished_at FROM stepfast_archive
 WHERE state = 'dead' AND (%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
   AND (%(any_error)s = 1 OR error_group = %(error_group)s)
   AND finished_at BETWEEN %(after)s AND %(until)s AND (finished_at > %(after)s OR id > %(after_id)s)
 ORDER BY finished_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- jobs.dead_letters.COUNT_DEAD
SELECT count(*) FROM stepfast_archive
 WHERE state = 'dead' AND (%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
   AND (%(any_error)s = 1 OR error_group = %(error_group)s) AND finished_at <= %(until)s

-- jobs.dead_letters.FAILURE_GROUPS
SELECT kind, COALESCE(error_group, ''), count(*), min(finished_at), max(finished_at), max(id)
  FROM stepfast_archive
 WHERE state = 'dead' AND (%(any_kind)s = 1 OR kind = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
   AND (%(any_error)s = 1 OR error_group = %(error_group)s)
 GROUP BY kind, error_group ORDER BY count(*) DESC, kind, max(id) LIMIT %(limit)s

-- jobs.dead_letters.LOCK_ENDED_JOB
SELECT state, queue, kind, CASE WHEN unique_key LIKE '(after) %%' THEN SUBSTR(unique_key, 9) ELSE unique_key END FROM stepfast_archive WHERE id = %(id)s FOR UPDATE

-- jobs.dead_letters.KEY_HOLDER
SELECT id FROM stepfast_job WHERE unique_key = %(key)s AND kind = %(kind)s

-- jobs.dead_letters.REVIVE_JOBS
INSERT INTO stepfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key,
                          step, failures, crashes, trace, fence, progress, progress_note, last_error, error_group, cursor_json,
                          has_dependants, payload)
SELECT id, queue, kind,
       CASE WHEN EXISTS (SELECT 1 FROM stepfast_dependency WHERE child_id = stepfast_archive.id AND state <> 'met') THEN 'waiting'
            ELSE CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END END, priority, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), created_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CASE WHEN unique_key LIKE '(after) %%' THEN SUBSTR(unique_key, 9) ELSE unique_key END,
       step, 0, 0, trace, %(fence)s, progress, progress_note, last_error, error_group, cursor_json,
       CASE WHEN EXISTS (SELECT 1 FROM stepfast_dependency WHERE parent_id = stepfast_archive.id) THEN 1 ELSE 0 END, CAST(payload AS JSON)
  FROM stepfast_archive WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state IN ('dead', 'cancelled')
 ORDER BY finished_at, id
ON CONFLICT DO NOTHING

-- jobs.dead_letters.LEAVE_ARCHIVE
DELETE FROM stepfast_archive
 WHERE id = ANY(CAST(%(ids)s AS TEXT[]))
   AND EXISTS (SELECT 1 FROM stepfast_job WHERE stepfast_job.id = stepfast_archive.id AND fence = %(fence)s)

-- jobs.dead_letters.CANCEL_DEAD
UPDATE stepfast_archive SET state = 'cancelled' WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'dead'

-- jobs.dead_letters.FORGET_ARCHIVED
DELETE FROM stepfast_archive WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.dead_letters.FORGET_EDGES
DELETE FROM stepfast_dependency WHERE child_id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.dead_letters.FORGET_LOGS
DELETE FROM stepfast_log WHERE job_id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.dead_letters.GROUP_MEMBERS
SELECT parent_id FROM stepfast_dependency WHERE child_id = ANY(CAST(%(ids)s AS TEXT[])) AND bond = 'member'

-- jobs.dead_letters.TREE_CHILDREN
SELECT child_id FROM stepfast_dependency WHERE parent_id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.dead_letters.FAILED_CHILDREN
SELECT child_id FROM stepfast_dependency WHERE parent_id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'broken'

-- jobs.dead_letters.LOCK_LIVE_TREE
SELECT id FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[])) ORDER BY id FOR UPDATE

-- jobs.dead_letters.LOCK_ENDED_TREE
SELECT id, queue, finished_at FROM stepfast_archive WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state IN ('dead', 'cancelled')
 ORDER BY id FOR UPDATE

-- jobs.dead_letters.BREAK_TREE_EDGES
UPDATE stepfast_dependency SET state = 'broken'
 WHERE child_id = ANY(CAST(%(ids)s AS TEXT[])) AND parent_id = ANY(CAST(%(parents)s AS TEXT[])) AND state = 'open'

-- jobs.debounce.LOOK_AT_HOLDER
SELECT id, state, cursor_json, fence, CAST(payload AS TEXT) FROM stepfast_job WHERE unique_key = %(key)s AND kind = %(kind)s

-- jobs.debounce.LOCK_HOLDER
SELECT id, state, cursor_json, fence, CAST(payload AS TEXT) FROM stepfast_job WHERE unique_key = %(key)s AND kind = %(kind)s
FOR UPDATE

-- jobs.debounce.MERGE_CALL
UPDATE stepfast_job
   SET payload = CAST(CAST(%(payload)s AS TEXT) AS JSON), priority = CASE WHEN priority < %(priority)s THEN %(priority)s ELSE priority END,
       step = CASE WHEN leased_at IS NULL THEN step ELSE step + 1 END, fence = %(fence)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND fence = %(was)s AND cursor_json IS NULL
   AND state IN ('scheduled', 'ready', 'suspect', 'held', 'waiting')

-- jobs.debounce.POSTPONE_HOLDER
UPDATE stepfast_job
   SET state = CASE WHEN state = 'held' THEN 'held' ELSE 'scheduled' END,
       ready_at = CASE WHEN CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(quiet)s < created_at + %(at_most)s THEN CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(quiet)s ELSE created_at + %(at_most)s END,
       updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND leased_at IS NULL AND state IN ('scheduled', 'ready', 'held')

-- jobs.debounce.INSERT_SUCCESSOR
INSERT INTO stepfast_job (id, queue, kind, state, held_by, priority, ready_at, created_at, updated_at, unique_key, trace, payload)
VALUES (%(id)s, %(queue)s, %(kind)s, 'held', '(key)', %(priority)s, COALESCE(%(run_at)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(delay)s), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), %(key)s, %(trace)s, CAST(CAST(%(payload)s AS TEXT) AS JSON))
ON CONFLICT DO NOTHING

-- jobs.debounce.FREE_SUCCESSORS
SELECT s.id, s.queue, s.unique_key 
  FROM stepfast_job s
 WHERE s.held_by = '(key)' AND s.state = 'held'
   AND NOT EXISTS (SELECT 1 FROM stepfast_job h
                    WHERE h.unique_key = SUBSTR(s.unique_key, 9) AND h.kind = s.kind)

 ORDER BY s.priority DESC, s.ready_at, s.id
 LIMIT %(limit)s

-- jobs.debounce.PROMOTE_SUCCESSOR
UPDATE stepfast_job
   SET unique_key = %(key)s, state = CASE WHEN ready_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 'scheduled' ELSE CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END END,
       held_by = NULL, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND state = 'held' AND held_by = '(key)'

-- jobs.dependencies.LOCK_LIVE_JOBS
SELECT id FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[])) ORDER BY id FOR UPDATE

-- jobs.dependencies.LOCK_ENDED_JOBS
SELECT id, state FROM stepfast_archive WHERE id = ANY(CAST(%(ids)s AS TEXT[])) ORDER BY id FOR UPDATE

-- jobs.dependencies.MARK_PARENTS
UPDATE stepfast_job SET has_dependants = 1 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND has_dependants = 0

-- jobs.dependencies.ADD_EDGE
INSERT INTO stepfast_dependency (child_id, parent_id, bond, on_dead, state)
VALUES (%(child_id)s, %(parent_id)s, %(bond)s, %(on_dead)s, %(state)s)

-- jobs.dependencies.DROP_EDGES
DELETE FROM stepfast_dependency
 WHERE child_id IN (SELECT id FROM stepfast_job WHERE unique_key = %(key)s AND kind = %(kind)s)

-- jobs.dependencies.EDGES_TO
SELECT parent_id FROM stepfast_dependency WHERE child_id = %(id)s AND parent_id = ANY(CAST(%(parents)s AS TEXT[]))

-- jobs.dependencies.UNMET_EDGES
SELECT child_id, parent_id FROM stepfast_dependency WHERE child_id = ANY(CAST(%(ids)s AS TEXT[])) AND state <> 'met'
 ORDER BY child_id, parent_id

-- jobs.dependencies.PARENT_RESULTS
SELECT d.parent_id, a.kind, a.result FROM stepfast_dependency d JOIN stepfast_archive a ON a.id = d.parent_id
 WHERE d.child_id = %(id)s AND a.state = 'done'
 ORDER BY d.parent_id

-- jobs.dependencies.UNMET_PARENTS
SELECT DISTINCT parent_id FROM stepfast_dependency WHERE child_id = ANY(CAST(%(ids)s AS TEXT[])) AND state <> 'met'

-- jobs.dependencies.REOPEN_EDGES
UPDATE stepfast_dependency SET state = 'open'
 WHERE child_id = ANY(CAST(%(ids)s AS TEXT[])) AND parent_id = ANY(CAST(%(parents)s AS TEXT[])) AND state = 'broken'

-- jobs.dependencies.MEET_EDGES_OF
UPDATE stepfast_dependency SET state = 'met'
 WHERE child_id = ANY(CAST(%(ids)s AS TEXT[])) AND parent_id = ANY(CAST(%(parents)s AS TEXT[])) AND state <> 'met'

-- jobs.dependencies.OPEN_EDGES
SELECT child_id, parent_id, on_dead FROM stepfast_dependency
 WHERE state = 'open' AND child_id >= %(child)s AND (child_id > %(child)s OR parent_id > %(parent)s)
 ORDER BY child_id, parent_id LIMIT %(limit)s

-- jobs.dependencies.LIVE_PARENTS
SELECT id FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.dependencies.ENDED_PARENTS
SELECT id, state FROM stepfast_archive WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.end_webhook.FAILED_TASKS
SELECT t.id, t.client, t.task_id, t.task_type, t.webhook_url, a.state, a.last_error, a.error_group,
       a.failures + a.crashes, a.committed_fence, a.finished_at, a.trace
  FROM stepfast_task t JOIN stepfast_archive a ON a.id = t.id
 WHERE t.id = ANY(CAST(%(ids)s AS TEXT[])) AND t.webhook_url IS NOT NULL AND a.state IN ('dead', 'cancelled')

-- jobs.end_webhook.TASK_WEBHOOK
SELECT client, task_id, task_type, webhook_url, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) FROM stepfast_task
 WHERE id = %(id)s AND webhook_url IS NOT NULL

-- jobs.end_webhook.TASK_ID
SELECT task_id FROM stepfast_task WHERE id = %(id)s

-- jobs.enqueue.INSERT_JOB
INSERT INTO stepfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, trace, payload)
VALUES (%(id)s, %(queue)s, %(kind)s, %(state)s, %(priority)s, COALESCE(%(run_at)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(delay)s), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), %(key)s, %(trace)s, CAST(CAST(%(payload)s AS TEXT) AS JSON))
ON CONFLICT DO NOTHING

-- jobs.enqueue.KEY_HOLDERS
SELECT unique_key, id FROM stepfast_job WHERE unique_key = ANY(CAST(%(keys)s AS TEXT[])) AND kind = %(kind)s

-- jobs.enqueue.KEY_HOLDERS_NOW
SELECT unique_key, id FROM stepfast_job WHERE unique_key = ANY(CAST(%(keys)s AS TEXT[])) AND kind = %(kind)s FOR UPDATE

-- jobs.enqueue.REPLACE_JOB
UPDATE stepfast_job
   SET queue = %(queue)s, payload = CAST(CAST(%(payload)s AS TEXT) AS JSON), priority = %(priority)s, state = %(state)s,
       ready_at = COALESCE(%(run_at)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(delay)s), updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), fence = %(fence)s, committed_fence = NULL,
       owner = NULL, leased_by = NULL, lease_until = NULL, cancel_at = NULL, held_by = NULL,
       step = step + 1, failures = 0, crashes = 0, cursor_json = NULL, progress = 0, progress_note = NULL,
       last_error = NULL, error_group = NULL, trace = %(trace)s
 WHERE id = %(id)s AND unique_key = %(key)s AND kind = %(kind)s
   AND state IN ('scheduled', 'ready', 'suspect', 'leased', 'held', 'waiting')

-- jobs.enqueue.KNOWN_JOBS
SELECT id, kind FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[])) UNION ALL SELECT id, kind FROM stepfast_archive WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.enqueue.INSERT_JOBS
   INSERT INTO stepfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key, trace, payload)
   SELECT new.id, %(queue)s, %(kind)s, %(state)s, %(priority)s, COALESCE(%(run_at)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(delay)s), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), new.key, %(trace)s, CAST(new.payload AS JSON)
     FROM unnest(CAST(%(ids)s AS TEXT[]), CAST(%(keys)s AS TEXT[]), CAST(%(payloads)s AS TEXT[])) AS new (id, key, payload)
ON CONFLICT DO NOTHING

-- jobs.enqueue.INSERT_KEYLESS_JOBS
INSERT INTO stepfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, trace, payload)
SELECT new.id, %(queue)s, %(kind)s, %(state)s, %(priority)s, COALESCE(%(run_at)s, (SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) + %(delay)s), (SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)), (SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
       CAST(%(trace)s AS TEXT), CAST(new.payload AS JSON)
  FROM unnest(CAST(%(ids)s AS TEXT[]), CAST(%(payloads)s AS TEXT[])) AS new (id, payload)

-- jobs.events.KNOW_EVENT_NAME
INSERT INTO stepfast_event_name (id, at) VALUES (%(id)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) ON CONFLICT DO NOTHING

-- jobs.events.LOCK_EVENT_NAME
SELECT id FROM stepfast_event_name WHERE id = %(id)s FOR UPDATE

-- jobs.events.OLDEST_KEPT_EVENT
SELECT id, event_id, payload, sent_at FROM stepfast_event
 WHERE name = %(name)s AND until_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) ORDER BY id LIMIT 1 FOR UPDATE

-- jobs.events.TAKE_EVENT
DELETE FROM stepfast_event WHERE id = %(id)s

-- jobs.events.KEEP_EVENT
INSERT INTO stepfast_event (name, event_id, sent_at, until_at, payload)
VALUES (%(name)s, %(event_id)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(keep)s, %(payload)s)

-- jobs.events.ADD_WAIT
INSERT INTO stepfast_wait (name, job_id, fence, until_at) VALUES (%(name)s, %(job_id)s, %(fence)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(patience)s)

-- jobs.events.OLDEST_WAITS
SELECT id, job_id, fence FROM stepfast_wait WHERE name = %(name)s ORDER BY id LIMIT %(limit)s FOR UPDATE

-- jobs.events.END_WAIT
DELETE FROM stepfast_wait WHERE id = %(id)s

-- jobs.events.LOCK_WAITING_JOB
SELECT cursor_json, queue, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) FROM stepfast_job
 WHERE id = %(id)s AND fence = %(fence)s AND state = 'scheduled' FOR UPDATE

-- jobs.events.WAKE_JOB
UPDATE stepfast_job SET state = CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END, ready_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), cursor_json = %(cursor)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND fence = %(fence)s AND state = 'scheduled'

-- jobs.events.OLD_EVENTS
SELECT id FROM stepfast_event WHERE until_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s  ORDER BY until_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- jobs.events.OLD_WAITS
SELECT id FROM stepfast_wait WHERE until_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s  ORDER BY until_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- jobs.events.OLD_NAMES
SELECT id FROM stepfast_event_name WHERE at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s AND NOT EXISTS (SELECT 1 FROM stepfast_event e WHERE e.name = stepfast_event_name.id) AND NOT EXISTS (SELECT 1 FROM stepfast_wait w WHERE w.name = stepfast_event_name.id) ORDER BY at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- jobs.events.FORGET_EVENT
DELETE FROM stepfast_event WHERE id = %(id)s

-- jobs.events.FORGET_WAIT
DELETE FROM stepfast_wait WHERE id = %(id)s

-- jobs.events.FORGET_NAME
DELETE FROM stepfast_event_name WHERE id = %(id)s

-- jobs.events.MISSED_EVENTS
SELECT DISTINCT e.name FROM stepfast_event e JOIN stepfast_wait w ON w.name = e.name
 WHERE e.until_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) LIMIT %(limit)s

-- jobs.events.ANY_OLD_EVENTS
SELECT 1 WHERE EXISTS (SELECT 1 FROM stepfast_event WHERE until_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))
            OR EXISTS (SELECT 1 FROM stepfast_wait WHERE until_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(stale)s)
            OR EXISTS (SELECT 1 FROM stepfast_event_name
                        WHERE at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s
                          AND NOT EXISTS (SELECT 1 FROM stepfast_event e WHERE e.name = stepfast_event_name.id)
                          AND NOT EXISTS (SELECT 1 FROM stepfast_wait w WHERE w.name = stepfast_event_name.id))

-- jobs.groups.JOB_STATE
SELECT state FROM stepfast_job WHERE id = %(id)s UNION ALL SELECT state FROM stepfast_archive WHERE id = %(id)s

-- jobs.groups.GROUP_POLICY
SELECT on_dead FROM stepfast_dependency WHERE child_id = %(id)s AND bond = 'member' LIMIT 1

-- jobs.groups.GROUPS_OF_MEMBER
SELECT child_id FROM stepfast_dependency WHERE parent_id = %(id)s AND bond = 'member' AND state = 'open'
 ORDER BY child_id

-- jobs.keys.REMEMBER_KEY
INSERT INTO stepfast_key (id, job_id, kind, until_at) VALUES (%(id)s, %(job_id)s, %(kind)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) %% %(window)s + %(keep)s)
ON CONFLICT DO NOTHING

-- jobs.keys.TAKE_OVER_KEY
UPDATE stepfast_key SET job_id = %(job_id)s, kind = %(kind)s, until_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) %% %(window)s + %(keep)s
 WHERE id = %(id)s AND job_id <> %(job_id)s AND until_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- jobs.keys.REMEMBERED_HOLDER
SELECT job_id FROM stepfast_key WHERE id = %(id)s

-- jobs.keys.REMEMBERED_HOLDER_NOW
SELECT job_id FROM stepfast_key WHERE id = %(id)s FOR UPDATE

-- jobs.keys.REMEMBERED_KIND_NOW
SELECT kind FROM stepfast_key WHERE id = %(id)s FOR UPDATE

-- jobs.keys.HAND_OVER_KEY
UPDATE stepfast_key SET job_id = %(holder)s WHERE id = %(id)s AND job_id = %(job_id)s

-- jobs.keys.PROLONG_KEY
UPDATE stepfast_key SET until_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(keep)s WHERE id = %(id)s AND until_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(keep)s

-- jobs.keys.RELEASE_KEY
DELETE FROM stepfast_key WHERE id = %(id)s AND job_id = %(job_id)s

-- jobs.keys.FORGET_KEYS
DELETE FROM stepfast_key WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- jobs.keys.EXPIRED_KEYS
SELECT id FROM stepfast_key WHERE until_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) ORDER BY until_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- jobs.keys.LOCK_SUCCESSOR
SELECT id FROM stepfast_job WHERE unique_key = %(key)s AND kind = %(kind)s FOR UPDATE

-- jobs.keys.SUCCESSOR_KEYS
SELECT unique_key FROM stepfast_job WHERE unique_key = ANY(CAST(%(keys)s AS TEXT[])) AND kind = %(kind)s

-- jobs.keys.WITHDRAW_JOB
DELETE FROM stepfast_job WHERE id = %(id)s AND leased_at IS NULL

-- jobs.lease.PICK_JOBS
UPDATE stepfast_job
   SET state = 'leased', owner = %(owner)s, fence = %(fence)s, leased_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE ctid = ANY(ARRAY(
       SELECT ctid FROM stepfast_job
        WHERE queue = %(queue)s AND state = 'ready'  AND ready_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
          AND NOT EXISTS (SELECT 1 FROM stepfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL)
        ORDER BY priority DESC, ready_at, id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED))
RETURNING id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload

-- jobs.lease.PICK_JOBS_FROM_HINT
UPDATE stepfast_job
   SET state = 'leased', owner = %(owner)s, fence = %(fence)s, leased_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE ctid = ANY(ARRAY(
       SELECT ctid FROM stepfast_job
        WHERE queue = %(queue)s AND state = 'ready' AND priority = %(priority)s AND ready_at >= %(hint)s AND ready_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
          AND NOT EXISTS (SELECT 1 FROM stepfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL)
        ORDER BY ready_at, id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED))
RETURNING id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload

-- jobs.lease.TAKE_JOBS
-- (done by the statement before it)

-- jobs.lease.PICK_SUSPECTS
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload
  FROM stepfast_job
 WHERE state = 'suspect' AND alone >= %(least_alone)s AND alone <= %(most_alone)s
   AND (%(anywhere)s = 1 OR queue = ANY(CAST(%(queues)s AS TEXT[])))
   AND queue NOT IN (SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL)
 ORDER BY ready_at
 LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- jobs.lease.TAKE_SUSPECTS
UPDATE stepfast_job
   SET state = 'leased', owner = %(owner)s, fence = %(fence)s, leased_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'suspect'

-- jobs.lease.COUNT_SUSPECTS
SELECT alone, count(*) FROM stepfast_job
 WHERE state = 'suspect' AND (%(anywhere)s = 1 OR queue = ANY(CAST(%(queues)s AS TEXT[])))
   AND queue NOT IN (SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL)
 GROUP BY alone

-- jobs.lease.PICK_NAMED
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload
  FROM stepfast_job
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'ready'
   AND queue NOT IN (SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL)
 ORDER BY id
FOR UPDATE

-- jobs.lease.TAKE_NAMED
UPDATE stepfast_job
   SET state = 'leased', owner = %(owner)s, fence = %(fence)s, leased_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT),
       ready_at = CASE WHEN ready_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) ELSE ready_at END
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'ready'

-- jobs.lease.QUEUES_WITH_WORK
WITH RECURSIVE named (queue) AS (
    SELECT min(queue) FROM stepfast_job WHERE state = 'ready'
    UNION ALL
    SELECT (SELECT min(j.queue) FROM stepfast_job j WHERE j.state = 'ready' AND j.queue > named.queue)
      FROM named WHERE named.queue IS NOT NULL
)
SELECT queue FROM named
 WHERE queue IS NOT NULL AND queue NOT IN (SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL)

-- jobs.lease.NEXT_QUEUE
SELECT min(queue) FROM stepfast_job WHERE queue > %(after)s

-- jobs.lease.HAS_WORK
SELECT 1 FROM stepfast_job
 WHERE queue = %(queue)s AND state = 'ready'
   AND NOT EXISTS (SELECT 1 FROM stepfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL)
 LIMIT 1

-- jobs.lease.PRIORITY_SPREAD
SELECT (SELECT priority FROM stepfast_job WHERE queue = %(queue)s AND state = 'ready' ORDER BY priority LIMIT 1),
       (SELECT priority FROM stepfast_job WHERE queue = %(queue)s AND state = 'ready' ORDER BY priority DESC LIMIT 1)

-- jobs.lease.OVERDUE_JOBS
SELECT id FROM stepfast_job
 WHERE queue = %(queue)s AND state = 'ready' AND priority = %(priority)s
   AND ready_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s AND updated_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s
 ORDER BY ready_at, id
 LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- jobs.lease.NEXT_PRIORITY
SELECT min(priority) FROM stepfast_job WHERE queue = %(queue)s AND state = 'ready' AND priority > %(priority)s

-- jobs.lease.RAISE_PRIORITY
UPDATE stepfast_job SET priority = priority + 1, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'ready'

-- jobs.manual_lease.PICK_BY_HAND
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload
  FROM stepfast_job 
 WHERE queue = %(queue)s AND state = 'ready' AND ready_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
   AND NOT EXISTS (SELECT 1 FROM stepfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL)
 ORDER BY priority DESC, ready_at, id
 LIMIT 1
FOR UPDATE SKIP LOCKED

-- jobs.manual_lease.TAKE_BY_HAND
UPDATE stepfast_job
   SET state = 'leased', owner = %(owner)s, fence = %(fence)s, leased_by = %(worker_id)s,
       leased_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), lease_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(duration)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND state = 'ready'

-- jobs.manual_lease.EXTEND_LEASE
UPDATE stepfast_job SET lease_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(duration)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND fence = %(fence)s AND owner = %(owner)s

-- jobs.manual_lease.LEASE_UNTIL
SELECT lease_until FROM stepfast_job WHERE id = %(id)s

-- jobs.rescue.LIVE_WORKERS
SELECT incarnation, worker_id, process, guardian, CASE WHEN alive_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 1 ELSE 0 END
  FROM stepfast_worker WHERE state = 'alive' AND incarnation <> %(me)s

-- jobs.rescue.GUARDED_WORKERS
SELECT incarnation, process, guardian FROM stepfast_worker
 WHERE state = 'alive' AND incarnation <> %(me)s AND guardian IS NOT NULL

-- jobs.rescue.LATE_WORKERS
SELECT incarnation, alive_until FROM stepfast_worker
 WHERE state = 'alive' AND incarnation <> %(me)s AND alive_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- jobs.rescue.DECLARE_DEAD
UPDATE stepfast_worker
   SET state = 'dead', ended_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT),
       abandoned = (SELECT count(*) FROM stepfast_job WHERE owner = %(incarnation)s AND state = 'leased')
 WHERE incarnation = %(incarnation)s AND state = 'alive' AND (alive_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) OR %(proven)s = 1)

-- jobs.rescue.REPORT_DEATH
UPDATE stepfast_worker SET report = %(report)s WHERE incarnation = %(incarnation)s AND state = 'dead' AND report IS NULL

-- jobs.rescue.LEASED_JOBS
SELECT id FROM stepfast_job WHERE owner = %(incarnation)s AND state = 'leased'

-- jobs.rescue.ENDED_WORKERS_WITH_JOBS
SELECT w.incarnation, w.worker_id, w.state, COALESCE(w.abandoned, 0), w.suspects_only, w.ended_at, w.report
  FROM stepfast_worker w
 WHERE w.state IN ('dead', 'stopped')
   AND EXISTS (SELECT 1 FROM stepfast_job j WHERE j.owner = w.incarnation AND j.state = 'leased')
 LIMIT %(limit)s

-- jobs.rescue.ABANDONED_JOBS
SELECT id, crashes, cancel_at, kind, queue, trace, COALESCE(leased_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) FROM stepfast_job
 WHERE owner = %(owner)s AND state = 'leased'
 LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- jobs.rescue.EXPIRED_MANUAL_LEASES
SELECT id, crashes, cancel_at, kind, queue, trace, COALESCE(leased_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) FROM stepfast_job
 WHERE owner = %(owner)s AND state = 'leased' AND lease_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- jobs.rescue.ORPHANED_JOBS
SELECT id, crashes, cancel_at, kind, queue, trace, COALESCE(leased_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) FROM stepfast_job
 WHERE owner > %(owner)s AND state = 'leased'
   AND NOT EXISTS (SELECT 1 FROM stepfast_worker WHERE incarnation = owner)
 LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- jobs.rescue.CLEAR_ABANDONED
UPDATE stepfast_worker SET abandoned = 0 WHERE incarnation = %(incarnation)s AND state = 'dead'

-- jobs.rescue.TAKE_BACK_JOBS
UPDATE stepfast_job
   SET state = %(state)s, owner = NULL, leased_by = NULL, lease_until = NULL, fence = %(fence)s,
       crashes = crashes + %(charge)s, ready_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), error_group = %(error_group)s, alone = %(alone)s,
       last_error = CASE WHEN last_error IS NULL THEN CAST(%(note)s AS TEXT) WHEN length(last_error) > 3500 THEN last_error
                         ELSE last_error || '; ' || CAST(%(note)s AS TEXT) END
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'leased'

-- jobs.rescue.TAKE_BACK_UNSTARTED
UPDATE stepfast_job
   SET state = CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END, owner = NULL, leased_by = NULL, lease_until = NULL, fence = %(fence)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'leased'

-- jobs.rescue.FIND_LEASE
SELECT id, kind, queue, priority, ready_at, step, failures, crashes, cursor_json, trace, payload, fence
  FROM stepfast_job WHERE id = %(id)s AND state = 'leased'

-- jobs.step.WRITE_PROGRESS
UPDATE stepfast_job
   SET progress = COALESCE(%(percent)s, progress), progress_note = COALESCE(%(note)s, progress_note), updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND fence = %(fence)s

-- jobs.step.WRITE_LOG
INSERT INTO stepfast_log (job_id, at, level, step, message)
SELECT id, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), %(level)s, step, %(message)s FROM stepfast_job
 WHERE id = %(id)s AND fence = %(fence)s

-- limits.limit_rows.ADMISSION_TIME
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- limits.limit_rows.HOLD_JOBS
   UPDATE stepfast_job 
      SET state = 'held', held_by = CAST(%(limits)s AS JSONB) ->> id, owner = NULL, leased_by = NULL, lease_until = NULL,
          fence = %(new_fence)s, committed_fence = %(fence)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND fence = %(fence)s AND cancel_at IS NULL

-- limits.limit_rows.LIMITS_WAITED_FOR
SELECT DISTINCT held_by FROM stepfast_job WHERE held_by = ANY(CAST(%(limits)s AS TEXT[])) AND state = 'held'

-- limits.limit_rows.ANY_HELD_JOB
SELECT kind, queue FROM stepfast_job WHERE held_by = %(limit_id)s AND state = 'held' LIMIT 1

-- limits.limit_rows.HELD_JOBS
SELECT id, queue FROM stepfast_job
 WHERE held_by = %(limit_id)s AND state = 'held'
 ORDER BY priority DESC, ready_at, id
 LIMIT %(most)s
FOR UPDATE SKIP LOCKED

-- limits.limit_rows.RELEASE_HELD_JOBS
UPDATE stepfast_job
   SET state = CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END, held_by = NULL, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'held'

-- limits.limit_rows.DUE_LIMITS
SELECT id, arrival_at, gap, tolerance, slots, due_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) FROM stepfast_limit
 WHERE due_at IS NOT NULL AND due_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- limits.limit_rows.RECORD_LOOK
UPDATE stepfast_limit
   SET due_at = %(due_at)s, arrival_at = %(arrival_at)s, gap = %(gap)s, tolerance = %(tolerance)s, slots = %(slots)s
 WHERE id = %(id)s

-- limits.limit_rows.LOOK_AT_ALL_LIMITS
UPDATE stepfast_limit SET due_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE due_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- limits.limit_rows.LOOK_AT_LIMITS_OF_JOBS
UPDATE stepfast_limit SET due_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE due_at IS NOT NULL AND id IN (SELECT limit_id FROM stepfast_slot WHERE job_id = ANY(CAST(%(ids)s AS TEXT[])))

-- limits.limit_rows.RESERVATION_TIME
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- limits.limit_rows.ENSURE_LIMITS
INSERT INTO stepfast_limit (id) SELECT unnest(CAST(%(ids)s AS TEXT[])) ON CONFLICT DO NOTHING

-- limits.limit_rows.LOCK_LIMITS
SELECT id, arrival_at, gap, tolerance, slots, due_at FROM stepfast_limit WHERE id = ANY(CAST(%(ids)s AS TEXT[])) ORDER BY id FOR UPDATE

-- limits.limit_rows.WRITE_LIMITS
INSERT INTO stepfast_limit (id, arrival_at, gap, tolerance, slots, due_at) SELECT * FROM unnest(CAST(%(ids)s AS TEXT[]), CAST(%(arrival_at)s AS BIGINT[]), CAST(%(gap)s AS BIGINT[]), CAST(%(tolerance)s AS BIGINT[]), CAST(%(slots)s AS INTEGER[]), CAST(%(due_at)s AS BIGINT[])) ON CONFLICT (id) DO UPDATE SET arrival_at = excluded.arrival_at, gap = excluded.gap, tolerance = excluded.tolerance, slots = excluded.slots, due_at = excluded.due_at

-- limits.limit_rows.IDLE_LIMITS
SELECT id FROM stepfast_limit
 WHERE due_at IS NULL AND arrival_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s
   AND NOT EXISTS (SELECT 1 FROM stepfast_slot WHERE limit_id = stepfast_limit.id)
 LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- limits.limit_rows.FORGET_LIMITS
DELETE FROM stepfast_limit WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- limits.limit_rows.COUNT_SLOTS
SELECT limit_id, count(*) FROM stepfast_slot WHERE limit_id = ANY(CAST(%(limits)s AS TEXT[])) GROUP BY limit_id

-- limits.limit_rows.TAKE_SLOTS
INSERT INTO stepfast_slot (job_id, limit_id, fence) SELECT job_id, limit_id, CAST(%(fence)s AS BIGINT) FROM unnest(CAST(%(jobs)s AS TEXT[]), CAST(%(limits)s AS TEXT[])) AS taken (job_id, limit_id) ON CONFLICT (job_id, limit_id) DO UPDATE SET fence = excluded.fence

-- limits.limit_rows.FREE_SLOTS
DELETE FROM stepfast_slot WHERE job_id = ANY(CAST(%(ids)s AS TEXT[])) AND fence = %(fence)s

-- limits.limit_rows.DROP_STALE_SLOTS
DELETE FROM stepfast_slot
 WHERE limit_id = ANY(CAST(%(limits)s AS TEXT[]))
   AND NOT EXISTS (SELECT 1 FROM stepfast_job
                    WHERE stepfast_job.id = stepfast_slot.job_id AND stepfast_job.fence = stepfast_slot.fence)

-- outbox.alerts.ADD_ALERT
INSERT INTO stepfast_alert (id, severity, title, body, first_at, last_at)
VALUES (%(id)s, %(severity)s, %(title)s, %(body)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))
ON CONFLICT DO NOTHING

-- outbox.alerts.RAISE_ALERT
UPDATE stepfast_alert
   SET severity = %(severity)s, title = %(title)s, body = %(body)s, raised = raised + %(times)s, untold = untold + %(times)s,
       last_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), quiet_for = %(quiet_for)s,
       notify_at = CASE WHEN notify_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(too_old)s THEN notify_at
                        WHEN quiet_until > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN quiet_until ELSE CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) END
 WHERE id = %(id)s

-- outbox.alerts.DUE_ALERTS
SELECT id, severity, title, body, raised, untold, first_at, notified_at, quiet_for FROM stepfast_alert
 WHERE notify_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND notify_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(too_old)s
 ORDER BY notify_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- outbox.alerts.ALERT_SENT
UPDATE stepfast_alert
   SET notify_at = NULL, untold = 0, notified_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), quiet_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(quiet)s, message_ids = %(message_ids)s
 WHERE id = %(id)s AND notify_at IS NOT NULL

-- outbox.destinations.DUE_DESTINATIONS
   WITH RECURSIVE named (destination) AS (
       SELECT min(destination) FROM stepfast_outbox WHERE state = 'waiting'
       UNION ALL
       SELECT (SELECT min(o.destination) FROM stepfast_outbox o
                WHERE o.state = 'waiting' AND o.destination > named.destination)
         FROM named WHERE named.destination IS NOT NULL
   ), head (destination, due_at) AS (
       SELECT named.destination,
              (SELECT o.due_at FROM stepfast_outbox o
                WHERE o.state = 'waiting' AND o.destination = named.destination ORDER BY o.seq LIMIT 1)
         FROM named WHERE named.destination IS NOT NULL
   ), ranked (destination, due_at, failed, host_place) AS (
       SELECT head.destination, head.due_at,
              CASE WHEN (SELECT o.last_error FROM stepfast_outbox o
                          WHERE o.state = 'waiting' AND o.destination = head.destination ORDER BY o.seq LIMIT 1)
                        IS NULL THEN 0 ELSE 1 END,
              row_number() OVER (PARTITION BY 
   CASE WHEN substr(head.destination, 1, 8) = 'webhook:' AND length(head.destination) > 33
        THEN substr(head.destination, 1, length(head.destination) - 25) ELSE head.destination END
ORDER BY head.due_at)
         FROM head WHERE head.due_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND 
   NOT EXISTS (SELECT 1 FROM stepfast_destination d WHERE d.id = head.destination AND d.leased_until > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))

   )

   SELECT destination, failed
     FROM (SELECT destination, due_at, failed, row_number() OVER (PARTITION BY failed ORDER BY due_at) AS share_place
             FROM ranked WHERE host_place <= %(of_a_host)s) shares
    WHERE share_place <= %(limit)s ORDER BY due_at

-- outbox.destinations.ADD_DESTINATION
INSERT INTO stepfast_destination (id) VALUES (%(id)s) ON CONFLICT DO NOTHING

-- outbox.destinations.KNOWN_DESTINATIONS
SELECT id FROM stepfast_destination WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- outbox.destinations.FREE_DESTINATIONS
SELECT id FROM stepfast_destination WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND leased_until <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) ORDER BY id FOR UPDATE SKIP LOCKED

-- outbox.destinations.TAKE_DESTINATION
UPDATE stepfast_destination SET fence = %(fence)s, leased_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(lease)s
 WHERE id = %(id)s AND leased_until <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- outbox.destinations.RENEW_DESTINATION
UPDATE stepfast_destination SET leased_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(lease)s WHERE id = %(id)s AND fence = %(fence)s

-- outbox.destinations.RELEASE_DESTINATION
UPDATE stepfast_destination SET fence = %(nobody)s, leased_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND fence = %(fence)s

-- outbox.destinations.NEXT_MESSAGE
SELECT id, channel, destination, address, body, headers, trace, job_id, attempts, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - since_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - due_at
  FROM stepfast_outbox  WHERE state = 'waiting' AND destination = %(destination)s
 ORDER BY seq LIMIT 1

-- outbox.destinations.NEXT_MESSAGES
SELECT id, channel, destination, address, body, headers, trace, job_id, attempts, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - since_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - due_at
  FROM stepfast_outbox  WHERE state = 'waiting' AND destination = %(destination)s
 ORDER BY seq LIMIT %(limit)s

-- outbox.destinations.MARK_ALL_SENT
UPDATE stepfast_outbox SET state = 'sent', attempts = attempts + 1, ended_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), last_error = NULL
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'waiting'

-- outbox.destinations.FORGET_HINTS
DELETE FROM stepfast_outbox
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'waiting' AND channel = 'broker' AND job_id IS NOT NULL

-- outbox.destinations.MARK_SENT
UPDATE stepfast_outbox SET state = 'sent', attempts = attempts + 1, ended_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), last_error = NULL
 WHERE id = %(id)s AND state = 'waiting'

-- outbox.destinations.POSTPONE_MESSAGE
UPDATE stepfast_outbox SET attempts = attempts + %(charge)s, due_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(delay)s, last_error = %(error)s
 WHERE id = %(id)s AND state = 'waiting'

-- outbox.destinations.BURY_MESSAGE
UPDATE stepfast_outbox SET state = 'dead', attempts = attempts + 1, ended_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), last_error = %(error)s
 WHERE id = %(id)s AND state = 'waiting'

-- outbox.destinations.HOST_MESSAGES
SELECT id FROM stepfast_outbox
 WHERE state = 'waiting' AND destination >= %(first)s AND destination < %(behind)s AND due_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(soon)s
 ORDER BY destination, seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- outbox.destinations.POSTPONE_MESSAGES
UPDATE stepfast_outbox SET due_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(delay)s, last_error = COALESCE(last_error, %(error)s)
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'waiting'

-- outbox.destinations.OLD_MESSAGES
SELECT id FROM stepfast_outbox WHERE state = 'sent' AND ended_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s
 ORDER BY ended_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- outbox.destinations.FORGET_MESSAGES
DELETE FROM stepfast_outbox WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state = 'sent'

-- outbox.destinations.IDLE_DESTINATIONS
SELECT id FROM stepfast_destination WHERE leased_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s
 ORDER BY leased_until LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- outbox.destinations.FORGET_DESTINATIONS
DELETE FROM stepfast_destination WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND leased_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s

-- outbox.destinations.QUIET_ALERTS
SELECT id FROM stepfast_alert WHERE last_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s AND quiet_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND (notify_at IS NULL OR notify_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s) ORDER BY last_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- outbox.destinations.FORGET_ALERTS
DELETE FROM stepfast_alert WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND last_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s AND quiet_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND (notify_at IS NULL OR notify_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s)

-- outbox.messages.STAGE_MESSAGE
INSERT INTO stepfast_outbox (id, channel, destination, address, dedupe_key, state, created_at, since_at, due_at,
                             job_id, trace, headers, body)
VALUES (%(id)s, %(channel)s, %(destination)s, %(address)s, %(dedupe_key)s, 'waiting', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT),
        %(job_id)s, %(trace)s, %(headers)s, %(body)s)
ON CONFLICT DO NOTHING

-- outbox.messages.KEY_HOLDER
SELECT id FROM stepfast_outbox WHERE destination = %(destination)s AND dedupe_key = %(dedupe_key)s

-- outbox.messages.MESSAGES_BEFORE
SELECT (SELECT count(*) FROM stepfast_outbox b 
         WHERE b.state = 'waiting' AND b.destination = o.destination AND b.seq < o.seq),
       (SELECT h.last_error FROM stepfast_outbox h 
         WHERE h.state = 'waiting' AND h.destination = o.destination ORDER BY h.seq LIMIT 1)
  FROM stepfast_outbox o WHERE o.id = %(id)s AND o.state = 'waiting'

-- results.outcome.LOOK_AT_JOBS
SELECT id, kind, state, failures + crashes + CASE state WHEN 'leased' THEN 1 ELSE 0 END, step, progress, progress_note,
       last_error, created_at, NULL, NULL, NULL
  FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[]))
UNION ALL
SELECT id, kind, state, failures + crashes + CASE state WHEN 'done' THEN 1 ELSE 0 END, step, progress, progress_note,
       last_error, created_at, finished_at, result_expired_at, result
  FROM stepfast_archive WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- results.outcome.ANY_EXPIRED_RESULT
SELECT id FROM stepfast_archive
 WHERE kind = %(kind)s AND result IS NOT NULL AND finished_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s AND NOT EXISTS (
       SELECT 1 FROM stepfast_dependency d JOIN stepfast_job c ON c.id = d.child_id
        WHERE d.parent_id = stepfast_archive.id)
 ORDER BY finished_at LIMIT %(limit)s

-- results.outcome.EXPIRED_RESULTS
    SELECT id FROM stepfast_archive
     WHERE kind = %(kind)s AND result IS NOT NULL AND finished_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s AND NOT EXISTS (
           SELECT 1 FROM stepfast_dependency d JOIN stepfast_job c ON c.id = d.child_id
            WHERE d.parent_id = stepfast_archive.id)
     ORDER BY finished_at LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- results.outcome.EMPTY_RESULTS
UPDATE stepfast_archive SET result = NULL, result_expired_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND result IS NOT NULL

-- results.watch.LOG_LINES
SELECT id, at, level, step, message FROM stepfast_log
 WHERE job_id = %(id)s AND id > %(after)s ORDER BY id LIMIT %(limit)s

-- results.watch.LOG_LINE_NUMBERS
SELECT id FROM stepfast_log WHERE job_id = %(id)s AND id > %(after)s AND id <= %(newest)s ORDER BY id

-- results.watch.LOG_LINE
SELECT id, at, level, step, message FROM stepfast_log WHERE id = %(number)s AND job_id = %(id)s

-- runs.alerts.RAISED_LATELY
SELECT last_at FROM stepfast_alert WHERE id = %(id)s AND last_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(quiet)s

-- runs.breaker.BEGIN_PAUSE
UPDATE stepfast_feed
   SET troubles = troubles + 1, troubled_at = COALESCE(troubled_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)), paused_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(pause)s,
       pause_reason = %(reason)s, probe = %(job_id)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(feed)s AND (paused_until IS NULL OR paused_until <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))

-- runs.breaker.LENGTHEN_PAUSE
UPDATE stepfast_feed SET paused_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(pause)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(feed)s AND paused_until < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(pause)s

-- runs.breaker.END_PAUSE
UPDATE stepfast_feed
   SET troubles = 0, troubled_at = NULL, paused_until = NULL, pause_reason = NULL, probe = NULL, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(feed)s AND troubles = %(troubles)s AND paused_until = %(paused_until)s

-- runs.breaker.PARTITION_WAITS
UPDATE stepfast_partition
   SET troubled_at = CASE WHEN troubled_at >= updated_at THEN troubled_at ELSE CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) END, last_error = %(error)s
 WHERE id = %(id)s AND state IN ('ready', 'running')

-- runs.breaker.RUN_WAITS
UPDATE stepfast_run SET troubled_at = CASE WHEN troubled_at >= updated_at THEN troubled_at ELSE CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) END
 WHERE id = %(id)s AND ended_at IS NULL

-- runs.breaker.PARTITION_WAITED
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - troubled_at FROM stepfast_partition WHERE id = %(id)s AND troubled_at >= updated_at

-- runs.breaker.RUN_WAITED
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - troubled_at FROM stepfast_run WHERE id = %(id)s AND troubled_at >= updated_at

-- runs.breaker.NEXT_PROBE
SELECT job_id FROM stepfast_partition
 WHERE run_id = (SELECT m.run_id FROM stepfast_partition m WHERE m.id = %(id)s)
   AND id <> %(id)s AND state IN ('ready', 'running')
 ORDER BY CASE WHEN id > %(id)s THEN 0 ELSE 1 END, id LIMIT 1

-- runs.breaker.OTHERS_ARE_ANSWERED
SELECT g.seq FROM stepfast_partition p
  JOIN stepfast_partition o ON o.run_id = p.run_id AND o.id <> p.id AND o.updated_at > p.troubled_at
  JOIN stepfast_page g ON g.partition_id = o.id
 WHERE p.id = %(id)s AND g.request_offset IS NOT NULL AND g.at - 1000 * g.milliseconds > p.troubled_at + %(margin)s
 LIMIT 1

-- runs.consolidation.NOTE_PHASE
UPDATE stepfast_job SET progress_note = %(phase)s WHERE id = %(id)s AND fence = %(fence)s

-- runs.consolidation.NOTE_NEXT_PHASE
UPDATE stepfast_job SET progress_note = %(phase)s WHERE id = %(id)s

-- runs.consolidation.BEGIN_ROUND
UPDATE stepfast_run SET rounds = rounds + 1, shards = %(shards)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND rounds = %(round)s AND state IN ('applying', 'stalled')

-- runs.consolidation.COUNT_BATCH
UPDATE stepfast_run
   SET applied = applied + %(applied)s, quarantined = quarantined + %(refused)s, differences = differences + %(differing)s,
       shards = shards - %(ended)s, reason = NULL, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND rounds = %(round)s AND shards > 0 AND state IN ('applying', 'stalled')

-- runs.consolidation.HOLD_RUN
UPDATE stepfast_run SET reason = %(reason)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND rounds = %(round)s AND state IN ('applying', 'stalled')

-- runs.consolidation.FIND_ALIKE_ITEMS
-- (done by the statement before it)

-- runs.consolidation.ANY_FOLDABLE_ITEMS
-- (done by the statement before it)

-- runs.debts.OPEN_DEBT
INSERT INTO stepfast_debt (digest, feed, name, span, window_from, window_to, run_id, opened_at, tries)
VALUES (%(digest)s, %(feed)s, %(name)s, %(span)s, %(window_from)s, %(window_to)s, %(run_id)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), %(tries)s)

ON CONFLICT (digest) DO UPDATE
   SET tries = stepfast_debt.tries + 1, state = 'open', closed_by = NULL, closed_at = NULL, reason = NULL

-- runs.debts.COUNT_TRY
UPDATE stepfast_debt SET tries = tries + 1 WHERE id = %(id)s AND state = 'open'

-- runs.debts.OPEN_DEBTS
SELECT id, name, span, window_from, window_to, tries FROM stepfast_debt WHERE feed = %(feed)s AND state = 'open' ORDER BY id

-- runs.debts.FIND_DEBT
SELECT id, name, span, window_from, window_to, tries FROM stepfast_debt WHERE id = %(id)s

-- runs.debts.FIND_DEBT_BY_DIGEST
SELECT id, name, span, window_from, window_to, tries FROM stepfast_debt WHERE digest = %(digest)s

-- runs.debts.CLOSE_DEBT
UPDATE stepfast_debt SET state = 'closed', closed_by = %(run_id)s, closed_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), reason = %(reason)s
 WHERE id = %(id)s AND state = 'open'

-- runs.debts.CLOSE_COVERED_DEBTS
UPDATE stepfast_debt SET state = 'closed', closed_by = %(run_id)s, closed_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE feed = %(feed)s AND state = 'open' AND window_to <= %(window_to)s
   AND (%(since_ever)s = 1 OR (window_from IS NOT NULL AND window_from >= %(window_from)s))

-- runs.lifecycle.COUNT_ENDED_PARTITION
UPDATE stepfast_run
   SET completed = completed + %(completed)s, failed = failed + %(failed)s, unverified = unverified + %(unverified)s,
       seen = seen + %(seen)s, rejected = rejected + %(rejected)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND ended_at IS NULL

-- runs.lifecycle.END_FETCHING
UPDATE stepfast_run SET fetched_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND fetched_at IS NULL

-- runs.lifecycle.COUNT_OPEN_PARTITIONS
SELECT count(*) FROM stepfast_partition WHERE run_id = %(id)s AND state IN ('ready', 'running')

-- runs.lifecycle.END_APPLYING
UPDATE stepfast_run SET applied_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND ended_at IS NULL

-- runs.lifecycle.COMPLETE_RUN
UPDATE stepfast_run SET completed_at = ended_at, watermark_after = %(watermark)s
 WHERE id = %(id)s AND state = 'completed' AND completed_at IS NULL

-- runs.messages.FIND_PARTITIONS
SELECT p.number, p.job_id, p.epoch, p.next_offset,
       CASE WHEN p.state IN ('ready', 'running') THEN 1 ELSE 0 END
  FROM stepfast_partition p WHERE p.run_id = %(run_id)s AND p.number = ANY(CAST(%(numbers)s AS INTEGER[]))

-- runs.messages.FIND_RUNS
SELECT id, feed, state, stalled_in, epoch, job_id FROM stepfast_run WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- runs.messages.FIND_KNOWN_WORK
SELECT r.id, r.feed, p.number
  FROM stepfast_run r LEFT JOIN stepfast_partition p ON p.run_id = r.id AND p.number = ANY(CAST(%(numbers)s AS INTEGER[]))
 WHERE r.id = ANY(CAST(%(ids)s AS TEXT[]))

-- runs.page.FIND_POSITION
SELECT p.id, p.run_id, p.number, p.name, p.parent, p.span, p.window_from, p.window_to, p.debt_id, p.estimate, p.state,
       p.epoch, p.seq, p.paging, p.frontier, p.next_offset, p.seen, p.rejected, p.requests, p.counted, p.job_id, p.worker_id,
       p.last_error, p.started_at, p.updated_at, p.ended_at, r.id, r.feed, r.kind, r.scope, r.state, r.stalled_in, r.epoch, r.window_from, r.window_to, r.partitions,
       r.completed, r.failed, r.unverified, r.estimate, r.seen, r.rejected, r.applied, r.quarantined, r.gone, r.most_rows,
       r.priority, r.rounds, r.shards, r.forced, r.watermark_before, r.watermark_after, r.started_at, r.updated_at,
       r.ended_at, r.job_id, r.frontier, r.reason, r.trace, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + COALESCE(f.skew, 0)
  FROM stepfast_partition p
  JOIN stepfast_run r ON r.id = p.run_id
  LEFT JOIN stepfast_feed f ON f.id = r.feed
 WHERE p.id = %(id)s

-- runs.page.INSERT_PAGE
INSERT INTO stepfast_page (partition_id, epoch, seq, pass, request_offset, got, fresh, rejected, milliseconds,
                           decision, worker_id, fence, at)
VALUES (%(partition_id)s, %(epoch)s, %(seq)s, %(pass)s, %(request_offset)s, %(got)s, %(fresh)s, %(rejected)s, %(milliseconds)s,
        %(decision)s, %(worker_id)s, %(fence)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))

-- runs.page.KEEP_DIVISION
UPDATE stepfast_partition
   SET frontier = %(frontier)s, seq = seq + 1, requests = requests + %(requests)s, state = 'running', updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT),
       started_at = COALESCE(started_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))
 WHERE id = %(id)s AND epoch = %(epoch)s AND seq = %(seq)s AND state IN ('ready', 'running')

-- runs.page.UNCOUNT_DIVIDED
UPDATE stepfast_run SET partitions = partitions - 1, estimate = estimate - %(estimate)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND ended_at IS NULL

-- runs.partition.INSERT_PARTITION
INSERT INTO stepfast_partition (id, run_id, number, name, parent, span, window_from, window_to, debt_id, estimate, frontier,
                                job_id, created_at, updated_at)
VALUES (%(id)s, %(run_id)s, %(number)s, %(name)s, %(parent)s, %(span)s, %(window_from)s, %(window_to)s, %(debt_id)s, %(estimate)s, %(frontier)s, %(job_id)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))

-- runs.partition.NEXT_PARTITION_NUMBER
SELECT COALESCE(max(number) + 1, 0) FROM stepfast_partition WHERE run_id = %(run_id)s

-- runs.partition.FIND_PARTITION
SELECT p.id, p.run_id, p.number, p.name, p.parent, p.span, p.window_from, p.window_to, p.debt_id, p.estimate, p.state,
           p.epoch, p.seq, p.paging, p.frontier, p.next_offset, p.seen, p.rejected, p.requests, p.counted, p.job_id, p.worker_id,
           p.last_error, p.started_at, p.updated_at, p.ended_at FROM stepfast_partition p WHERE p.id = %(id)s

-- runs.partition.LOCK_PARTITION
SELECT p.id, p.run_id, p.number, p.name, p.parent, p.span, p.window_from, p.window_to, p.debt_id, p.estimate, p.state,
           p.epoch, p.seq, p.paging, p.frontier, p.next_offset, p.seen, p.rejected, p.requests, p.counted, p.job_id, p.worker_id,
           p.last_error, p.started_at, p.updated_at, p.ended_at FROM stepfast_partition p WHERE p.id = %(id)s FOR UPDATE

-- runs.partition.PARTITIONS_OF_RUN
SELECT p.id, p.run_id, p.number, p.name, p.parent, p.span, p.window_from, p.window_to, p.debt_id, p.estimate, p.state,
           p.epoch, p.seq, p.paging, p.frontier, p.next_offset, p.seen, p.rejected, p.requests, p.counted, p.job_id, p.worker_id,
           p.last_error, p.started_at, p.updated_at, p.ended_at FROM stepfast_partition p WHERE p.run_id = %(run_id)s ORDER BY p.number

-- runs.partition.LOCK_PARTITIONS_OF_RUN
SELECT p.id, p.run_id, p.number, p.name, p.parent, p.span, p.window_from, p.window_to, p.debt_id, p.estimate, p.state,
           p.epoch, p.seq, p.paging, p.frontier, p.next_offset, p.seen, p.rejected, p.requests, p.counted, p.job_id, p.worker_id,
           p.last_error, p.started_at, p.updated_at, p.ended_at FROM stepfast_partition p WHERE p.run_id = %(run_id)s ORDER BY p.id FOR UPDATE

-- runs.partition.ADVANCE_PARTITION
UPDATE stepfast_partition
   SET seq = seq + 1, requests = requests + 1, paging = %(paging)s, next_offset = %(next_offset)s, seen = seen + %(fresh)s,
       rejected = rejected + %(rejected)s, worker_id = %(worker_id)s, state = %(target)s, counted = %(counted)s,
       last_error = %(error)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), started_at = COALESCE(started_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)),
       ended_at = CASE WHEN %(ends)s = 1 THEN CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) ELSE NULL END
 WHERE id = %(id)s AND epoch = %(epoch)s AND seq = %(seq)s AND state IN ('ready', 'running')

-- runs.partition.END_PARTITION
UPDATE stepfast_partition
   SET state = %(target)s, last_error = %(error)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), ended_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), epoch = epoch + %(restarts)s
 WHERE id = %(id)s AND epoch = %(epoch)s AND state IN ('ready', 'running')

-- runs.plan.FIND_PRIOR_RANGES
SELECT span FROM stepfast_partition
 WHERE debt_id IS NULL AND state <> 'split'
   AND run_id = (SELECT r.id FROM stepfast_run r
                  WHERE r.feed = %(feed)s AND r.kind = %(kind)s AND r.state = 'completed' AND r.scope = 'complete'
                  ORDER BY r.started_at DESC LIMIT 1)
 ORDER BY number

-- runs.plan.KEEP_FRONTIER
UPDATE stepfast_run SET frontier = %(frontier)s, requests = requests + %(requests)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND ended_at IS NULL

-- runs.plan.END_PLANNING
UPDATE stepfast_run
   SET scope = %(scope)s, baseline = %(baseline)s, requests = requests + %(requests)s, frontier = NULL, planned_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND ended_at IS NULL

-- runs.plan.COUNT_NEW_PARTITIONS
UPDATE stepfast_run SET partitions = partitions + %(more)s, estimate = estimate + %(rows)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND ended_at IS NULL

-- runs.quarantine.PUT_INTO_QUARANTINE
INSERT INTO stepfast_quarantine (feed, item_id, stage, code, message, content_hash, payload, mapper_version, run_id,
                                 first_seen_at, last_seen_at)

SELECT CAST(%(feed)s AS TEXT), it ->> 0, it ->> 1, it ->> 2, it ->> 3, it ->> 4, it ->> 5, it ->> 6, it ->> 7, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
  FROM json_array_elements(CAST(%(rows)s AS JSON)) AS refused (it)

ON CONFLICT (feed, item_id, stage) DO UPDATE
   SET code = excluded.code, message = excluded.message, run_id = excluded.run_id, payload = excluded.payload,
       mapper_version = excluded.mapper_version, content_hash = excluded.content_hash,
       last_seen_at = excluded.last_seen_at, hits = stepfast_quarantine.hits + 1, state = 'open', note = NULL

-- runs.quarantine.FIND_OPEN_ENTRIES
SELECT item_id FROM stepfast_quarantine
 WHERE feed = %(feed)s AND item_id >= %(first)s AND item_id <= %(last)s AND state IN ('open', 'replaying')

-- runs.quarantine.SETTLE_ENTRIES
UPDATE stepfast_quarantine SET state = %(target)s, last_seen_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE feed = %(feed)s AND item_id = ANY(CAST(%(ids)s AS TEXT[])) AND state IN ('open', 'replaying')

-- runs.quarantine.COUNT_ENTRIES_OF_RUN
SELECT count(*) FROM stepfast_quarantine
 WHERE feed = %(feed)s AND run_id = %(run_id)s AND state IN ('open', 'replaying')

-- runs.quarantine.SAMPLE_ENTRIES
SELECT code, min(message), count(*) FROM stepfast_quarantine
 WHERE feed = %(feed)s AND run_id = %(run_id)s AND state IN ('open', 'replaying')
 GROUP BY code ORDER BY count(*) DESC, code LIMIT %(limit)s

-- runs.raw_rows.OBSERVE_ROWS
INSERT INTO stepfast_raw (feed, item_id, observed_at, run_id, content_hash, payload)
SELECT CAST(%(feed)s AS TEXT), item.id, CAST(%(observed_at)s AS BIGINT), CAST(%(run_id)s AS TEXT), item.hash, item.payload
  FROM unnest(CAST(%(ids)s AS TEXT[]), CAST(%(hashes)s AS TEXT[]), CAST(%(payloads)s AS TEXT[])) AS item (id, hash, payload)

ON CONFLICT (feed, item_id) DO UPDATE
   SET observed_at = excluded.observed_at, run_id = excluded.run_id, payload = excluded.payload,
       content_hash = excluded.content_hash, strikes = 0, gone_at = NULL,
       pending = CASE WHEN stepfast_raw.applied_hash = excluded.content_hash AND stepfast_raw.gone_at IS NULL
                      THEN 0 ELSE 1 END
 WHERE excluded.observed_at > stepfast_raw.observed_at

-- runs.raw_rows.FIND_SEEN
SELECT item_id, pass FROM stepfast_seen WHERE partition_id = %(partition_id)s AND item_id = ANY(CAST(%(ids)s AS TEXT[]))

-- runs.raw_rows.REMEMBER_SEEN
INSERT INTO stepfast_seen (partition_id, item_id, pass)
SELECT CAST(%(partition_id)s AS TEXT), item_id, CAST(%(pass)s AS INTEGER) FROM unnest(CAST(%(ids)s AS TEXT[])) AS seen (item_id)
ON CONFLICT (partition_id, item_id) DO UPDATE SET pass = excluded.pass

-- runs.raw_rows.REMEMBER_NEW
INSERT INTO stepfast_seen (partition_id, item_id, pass)
SELECT CAST(%(partition_id)s AS TEXT), item_id, CAST(%(pass)s AS INTEGER) FROM unnest(CAST(%(ids)s AS TEXT[])) AS seen (item_id)
ON CONFLICT (partition_id, item_id) DO NOTHING

-- runs.raw_rows.ANY_PENDING
SELECT 1 FROM stepfast_raw WHERE feed = %(feed)s AND pending = 1 LIMIT 1

-- runs.raw_rows.COUNT_PENDING
SELECT count(*) FROM stepfast_raw WHERE feed = %(feed)s AND pending = 1

-- runs.raw_rows.LAST_PENDING
SELECT max(item_id) FROM stepfast_raw WHERE feed = %(feed)s AND pending = 1

-- runs.raw_rows.END_OF_FIRST_SPAN
SELECT item_id FROM stepfast_raw WHERE feed = %(feed)s AND pending = 1 ORDER BY item_id LIMIT 1 OFFSET %(rows)s

-- runs.raw_rows.END_OF_NEXT_SPAN
SELECT item_id FROM stepfast_raw WHERE feed = %(feed)s AND pending = 1 AND item_id > %(after)s
 ORDER BY item_id LIMIT 1 OFFSET %(rows)s

-- runs.raw_rows.READ_FIRST_PENDING
SELECT item_id, content_hash, payload FROM stepfast_raw
 WHERE feed = %(feed)s AND pending = 1 AND item_id <= %(until)s
 ORDER BY item_id LIMIT %(limit)s

-- runs.raw_rows.READ_NEXT_PENDING
SELECT item_id, content_hash, payload FROM stepfast_raw
 WHERE feed = %(feed)s AND pending = 1 AND item_id > %(after)s AND item_id <= %(until)s
 ORDER BY item_id LIMIT %(limit)s

-- runs.raw_rows.READ_FIRST_PENDING_JOINED
    SELECT count(*), group_concat(item_id, %(border)s), group_concat(content_hash, %(border)s), group_concat(payload, %(border)s)
      FROM (
    SELECT item_id, content_hash, payload FROM stepfast_raw
     WHERE feed = %(feed)s AND pending = 1 AND item_id <= %(until)s
     ORDER BY item_id LIMIT %(limit)s
) batch

-- runs.raw_rows.READ_NEXT_PENDING_JOINED
    SELECT count(*), group_concat(item_id, %(border)s), group_concat(content_hash, %(border)s), group_concat(payload, %(border)s)
      FROM (
    SELECT item_id, content_hash, payload FROM stepfast_raw
     WHERE feed = %(feed)s AND pending = 1 AND item_id > %(after)s AND item_id <= %(until)s
     ORDER BY item_id LIMIT %(limit)s
) batch

-- runs.raw_rows.MARK_APPLIED
UPDATE stepfast_raw  SET applied_hash = content_hash, applied_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), pending = 0
 WHERE feed = %(feed)s AND item_id >= %(first)s AND item_id <= %(last)s AND (content_hash IN (SELECT unnest(CAST(%(hashes)s AS TEXT[])))) IS TRUE AND pending = 1

-- runs.raw_rows.MARK_SOME_ROWS_ASIDE
UPDATE stepfast_raw  SET applied_hash = CASE WHEN content_hash IN (SELECT unnest(CAST(%(bad)s AS TEXT[]))) THEN NULL ELSE content_hash END, applied_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), pending = CASE WHEN content_hash IN (SELECT unnest(CAST(%(bad)s AS TEXT[]))) THEN 2 ELSE 0 END
 WHERE feed = %(feed)s AND item_id >= %(first)s AND item_id <= %(last)s AND (content_hash IN (SELECT unnest(CAST(%(hashes)s AS TEXT[])))) IS TRUE AND pending = 1

-- runs.raw_rows.PENDING_HASHES
SELECT group_concat(content_hash, '')
  FROM (SELECT content_hash FROM stepfast_raw
         WHERE feed = %(feed)s AND item_id >= %(first)s AND item_id <= %(last)s AND pending = 1 ORDER BY item_id) range

-- runs.raw_rows.MARK_RANGE_APPLIED
UPDATE stepfast_raw SET applied_hash = content_hash, applied_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), pending = 0
 WHERE feed = %(feed)s AND item_id >= %(first)s AND item_id <= %(last)s AND pending = 1

-- runs.raw_rows.LOCK_PENDING
SELECT item_id, content_hash FROM stepfast_raw
 WHERE feed = %(feed)s AND item_id = ANY(CAST(%(ids)s AS TEXT[])) AND pending = 1
 ORDER BY item_id
FOR UPDATE

-- runs.raw_rows.PUT_APPLIED_ASIDE
UPDATE stepfast_raw SET pending = 2, applied_hash = NULL WHERE feed = %(feed)s AND item_id = ANY(CAST(%(ids)s AS TEXT[])) AND pending = 0

-- runs.raw_rows.END_OF_LOT
SELECT max(item_id) FROM (SELECT item_id FROM stepfast_raw WHERE feed = %(feed)s AND item_id > %(after)s
                           ORDER BY item_id LIMIT %(limit)s) lot

-- runs.raw_rows.MAKE_PENDING_AGAIN
UPDATE stepfast_raw SET pending = 1, applied_hash = NULL
 WHERE feed = %(feed)s AND item_id > %(after)s AND item_id <= %(until)s AND gone_at IS NULL AND pending IN (0, 2)

-- runs.raw_rows.COUNT_REMAPPED
UPDATE stepfast_run SET seen = seen + %(rows)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND rounds = 0 AND state IN ('applying', 'stalled')

-- runs.raw_rows.MAKE_PENDING_TO_COMPARE
UPDATE stepfast_raw SET pending = 1, applied_hash = NULL
 WHERE feed = %(feed)s AND item_id = ANY(CAST(%(ids)s AS TEXT[])) AND run_id = %(run_id)s AND pending = 0

-- runs.repair.BEGIN_NEXT_EPOCH
UPDATE stepfast_run SET epoch = epoch + 1, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND epoch = %(epoch)s

-- runs.repair.READERS_OF_RUN
SELECT p.id, j.id, j.state, j.ready_at, COALESCE(j.leased_by, w.worker_id),
       CASE WHEN j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 1 ELSE 0 END
  FROM stepfast_partition p
  JOIN stepfast_job j ON j.id = p.job_id
  LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE p.run_id = %(run_id)s AND p.state IN ('ready', 'running')

-- runs.repair.RESTART_PARTITION
UPDATE stepfast_partition
   SET state = 'ready', epoch = epoch + 1, job_id = %(job_id)s, paging = %(paging)s, ended_at = NULL, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND state = %(source)s

-- runs.repair.RESTART_PARTITION_ANEW
UPDATE stepfast_partition
   SET state = 'ready', epoch = epoch + 1, job_id = %(job_id)s, paging = NULL, frontier = NULL, next_offset = 0,
       seq = 0, seen = 0, rejected = 0, counted = NULL, started_at = NULL, ended_at = NULL, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND state = %(source)s

-- runs.repair.FORGET_SEEN
DELETE FROM stepfast_seen WHERE partition_id = ANY(CAST(%(ids)s AS TEXT[]))

-- runs.repair.RENEW_PARTITION_JOB
UPDATE stepfast_partition SET epoch = epoch + 1, job_id = %(job_id)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND state IN ('ready', 'running')

-- runs.repair.REOPEN_RUN
UPDATE stepfast_run
   SET state = %(target)s, stalled_in = NULL, active_feed = %(active_feed)s, ended_at = NULL, reason = NULL,
       epoch = epoch + 1, shards = 0, forced = %(forced)s, fetched_at = CASE WHEN %(fetched)s = 1 THEN fetched_at END, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND state = %(source)s AND epoch = %(epoch)s

-- runs.repair.RECOUNT_RUN
UPDATE stepfast_run
   SET completed = (SELECT count(*) FROM stepfast_partition p WHERE p.run_id = %(id)s AND p.state IN ('done', 'done_unverified')),
       failed = (SELECT count(*) FROM stepfast_partition p WHERE p.run_id = %(id)s AND p.state = 'failed'),
       unverified = (SELECT count(*) FROM stepfast_partition p WHERE p.run_id = %(id)s AND p.state = 'done_unverified'),
       seen = (SELECT COALESCE(sum(p.seen), 0) FROM stepfast_partition p
                WHERE p.run_id = %(id)s AND p.state IN ('done', 'done_unverified', 'failed')),
       rejected = (SELECT COALESCE(sum(p.rejected), 0) FROM stepfast_partition p
                    WHERE p.run_id = %(id)s AND p.state IN ('done', 'done_unverified', 'failed')),
       updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s

-- runs.repair.PLANNED_AT
SELECT planned_at FROM stepfast_run WHERE id = %(id)s

-- runs.repair.FORGET_FRONTIER
UPDATE stepfast_run SET frontier = NULL WHERE id = %(id)s AND epoch = %(epoch)s

-- runs.repair.FIND_BLOCKING_RUN
SELECT id, state FROM stepfast_run
 WHERE feed = %(feed)s AND id <> %(id)s
   AND (active_feed = %(feed)s OR (kind NOT IN ('backfill', 'remap')
                                AND (started_at > %(started_at)s OR (started_at = %(started_at)s AND id > %(id)s))))
 ORDER BY started_at DESC, id DESC LIMIT 1

-- runs.repair.LATER_WINDOWS
SELECT window_from, window_to FROM stepfast_run
 WHERE feed = %(feed)s AND id <> %(id)s AND started_at >= %(started_at)s AND kind IN ('full', 'incremental')
   AND state = 'completed' AND scope = 'complete'

-- runs.repair.FIND_OPEN_DEBTS
SELECT span, window_from, window_to FROM stepfast_debt WHERE feed = %(feed)s AND state = 'open'

-- runs.repair.CLOSE_DEBT_OF_PARTITION
UPDATE stepfast_debt SET state = 'closed', closed_by = %(run_id)s, closed_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), reason = 'its run reads it again'
 WHERE feed = %(feed)s AND run_id = %(run_id)s AND span = %(span)s AND window_to = %(window_to)s AND state = 'open'

-- runs.repair.LIVE_JOBS
SELECT j.id, j.kind FROM stepfast_job j
      JOIN (SELECT p.job_id AS id FROM stepfast_partition p WHERE p.run_id = %(run_id)s
            UNION SELECT r.job_id FROM stepfast_run r WHERE r.id = %(run_id)s
            UNION SELECT s.id FROM stepfast_job s WHERE s.id > %(first)s AND s.id < %(beyond)s) its ON its.id = j.id

-- runs.repair.DEAD_JOBS
SELECT j.id, j.kind FROM stepfast_archive j
      JOIN (SELECT p.job_id AS id FROM stepfast_partition p WHERE p.run_id = %(run_id)s
            UNION SELECT r.job_id FROM stepfast_run r WHERE r.id = %(run_id)s
            UNION SELECT s.id FROM stepfast_archive s WHERE s.id > %(first)s AND s.id < %(beyond)s) its ON its.id = j.id
WHERE j.state = 'dead'

-- runs.replay.READ_REPLAYING
SELECT q.item_id, q.stage, q.code, q.message, q.content_hash, q.payload, q.run_id, q.last_seen_at, r.content_hash,
       r.pending
  FROM stepfast_quarantine q
  LEFT JOIN stepfast_raw r ON r.feed = q.feed AND r.item_id = q.item_id AND r.gone_at IS NULL
 WHERE q.feed = %(feed)s AND q.state = 'replaying' AND q.item_id > %(after)s
 ORDER BY q.item_id, q.stage LIMIT %(limit)s

-- runs.replay.FIND_SKEW
SELECT skew FROM stepfast_feed WHERE id = %(feed)s

-- runs.replay.MAKE_PENDING
UPDATE stepfast_raw SET pending = 1
 WHERE feed = %(feed)s AND item_id = ANY(CAST(%(ids)s AS TEXT[])) AND content_hash = ANY(CAST(%(hashes)s AS TEXT[])) AND pending = 2
   AND gone_at IS NULL

-- runs.run.FIND_ACTIVE_RUN
SELECT id, state FROM stepfast_run WHERE active_feed = %(feed)s

-- runs.run.INSERT_RUN
INSERT INTO stepfast_run (id, feed, kind, state, active_feed, window_from, window_to, mapper_version,
                          watermark_before, most_rows, priority, trace, scope, started_at, updated_at)
VALUES (%(id)s, %(feed)s, %(kind)s, 'planning', %(active_feed)s, %(window_from)s, %(window_to)s, %(mapper_version)s,
        %(watermark_before)s, %(most_rows)s, %(priority)s, %(trace)s, %(scope)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))

-- runs.run.FIND_RUN
SELECT r.id, r.feed, r.kind, r.scope, r.state, r.stalled_in, r.epoch, r.window_from, r.window_to, r.partitions,
           r.completed, r.failed, r.unverified, r.estimate, r.seen, r.rejected, r.applied, r.quarantined, r.gone, r.most_rows,
           r.priority, r.rounds, r.shards, r.forced, r.watermark_before, r.watermark_after, r.started_at, r.updated_at,
           r.ended_at, r.job_id, r.frontier, r.reason, r.trace FROM stepfast_run r WHERE r.id = %(id)s

-- runs.run.LOCK_RUN
SELECT r.id, r.feed, r.kind, r.scope, r.state, r.stalled_in, r.epoch, r.window_from, r.window_to, r.partitions,
           r.completed, r.failed, r.unverified, r.estimate, r.seen, r.rejected, r.applied, r.quarantined, r.gone, r.most_rows,
           r.priority, r.rounds, r.shards, r.forced, r.watermark_before, r.watermark_after, r.started_at, r.updated_at,
           r.ended_at, r.job_id, r.frontier, r.reason, r.trace FROM stepfast_run r WHERE r.id = %(id)s FOR UPDATE

-- runs.run.MOVE_RUN
UPDATE stepfast_run SET state = %(target)s, stalled_in = NULL, reason = NULL, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND state = %(source)s AND epoch = %(epoch)s

-- runs.run.END_RUN
UPDATE stepfast_run
   SET state = %(target)s, stalled_in = NULL, active_feed = NULL, ended_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), reason = %(reason)s
 WHERE id = %(id)s AND state = %(source)s AND epoch = %(epoch)s

-- runs.run.WATCH_JOB
UPDATE stepfast_run SET job_id = %(job_id)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND epoch = %(epoch)s

-- runs.run.INSERT_FEED
INSERT INTO stepfast_feed (id) VALUES (%(feed)s) ON CONFLICT DO NOTHING

-- runs.run.FIND_FEED
SELECT id, watermark, version, last_run, skew, last_took, troubles, paused_until, pause_reason, updated_at, troubled_at, probe, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), export_to FROM stepfast_feed WHERE id = %(feed)s

-- runs.run.LOCK_FEED
SELECT id, watermark, version, last_run, skew, last_took, troubles, paused_until, pause_reason, updated_at, troubled_at, probe, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), export_to FROM stepfast_feed WHERE id = %(feed)s FOR UPDATE

-- runs.start.DATABASE_CLOCK
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- runs.start.KEEP_SKEW
UPDATE stepfast_feed SET skew = %(skew)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(feed)s
   AND (skew < %(skew)s OR (skew > %(skew)s AND NOT EXISTS (SELECT 1 FROM stepfast_raw r WHERE r.feed = %(feed)s)))

-- runs.start.SKIP_FETCHING
UPDATE stepfast_run SET scope = 'partial', planned_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), fetched_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND state = 'planning'

-- runs.sweep_rows.KEEP_SWEEP
UPDATE stepfast_run SET frontier = %(kept)s, gone = gone + %(gone)s, reason = %(reason)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND COALESCE(stalled_in, state) = 'sweeping' AND frontier = %(was)s

-- runs.sweep_rows.BEGIN_SWEEP
UPDATE stepfast_run SET frontier = %(kept)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND state = 'sweeping'

-- runs.sweep_rows.COUNT_STRETCH
SELECT max(item_id), count(*), COALESCE(sum(living), 0), COALESCE(sum(unseen), 0), COALESCE(sum(going), 0)
  FROM (SELECT item_id, CASE WHEN gone_at IS NULL THEN 1 ELSE 0 END AS living,
               CASE WHEN gone_at IS NULL AND observed_at < %(before)s AND run_id <> %(run_id)s
              AND (struck_by IS NULL OR struck_by <> %(run_id)s) THEN 1 ELSE 0 END AS unseen,
               CASE WHEN strikes + 1 >= %(strikes)s AND gone_at IS NULL AND observed_at < %(before)s AND run_id <> %(run_id)s
              AND (struck_by IS NULL OR struck_by <> %(run_id)s) THEN 1 ELSE 0 END AS going
          FROM stepfast_raw WHERE feed = %(feed)s AND item_id > %(after)s
         ORDER BY item_id LIMIT %(stretch)s) walked

-- runs.sweep_rows.FIND_UNSEEN
SELECT item_id, CASE WHEN strikes + 1 >= %(strikes)s THEN 1 ELSE 0 END FROM stepfast_raw
 WHERE feed = %(feed)s AND item_id > %(after)s AND item_id <= %(until)s AND gone_at IS NULL AND observed_at < %(before)s AND run_id <> %(run_id)s
              AND (struck_by IS NULL OR struck_by <> %(run_id)s)
 ORDER BY item_id LIMIT %(limit)s

-- runs.sweep_rows.LOCK_UNSEEN
SELECT item_id, strikes FROM stepfast_raw WHERE feed = %(feed)s AND item_id = ANY(CAST(%(ids)s AS TEXT[])) AND gone_at IS NULL AND observed_at < %(before)s AND run_id <> %(run_id)s
              AND (struck_by IS NULL OR struck_by <> %(run_id)s)
 ORDER BY item_id FOR UPDATE

-- runs.sweep_rows.STRIKE_ROWS
UPDATE stepfast_raw SET strikes = strikes + 1, struck_by = %(run_id)s
 WHERE feed = %(feed)s AND item_id = ANY(CAST(%(ids)s AS TEXT[])) AND gone_at IS NULL

-- runs.sweep_rows.MARK_GONE
UPDATE stepfast_raw SET strikes = strikes + 1, struck_by = %(run_id)s, gone_at = %(at)s, applied_hash = NULL
 WHERE feed = %(feed)s AND item_id = ANY(CAST(%(ids)s AS TEXT[])) AND gone_at IS NULL

-- runs.sweep_rows.CLOCK
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- runs.sweep_rows.END_OF_STRETCH
SELECT max(item_id), count(*) FROM (SELECT item_id FROM stepfast_raw WHERE feed = %(feed)s AND item_id > %(after)s
                                     ORDER BY item_id LIMIT %(stretch)s) walked

-- runs.sweep_rows.FIND_GONE
SELECT item_id FROM stepfast_raw
 WHERE feed = %(feed)s AND item_id > %(after)s AND item_id <= %(until)s AND gone_at IS NOT NULL AND struck_by = %(run_id)s
 ORDER BY item_id LIMIT %(limit)s

-- runs.sweep_rows.LOCK_GONE
SELECT item_id FROM stepfast_raw WHERE feed = %(feed)s AND item_id = ANY(CAST(%(ids)s AS TEXT[])) AND gone_at IS NOT NULL AND struck_by = %(run_id)s
 ORDER BY item_id FOR UPDATE

-- runs.sweep_rows.BRING_ROWS_BACK
UPDATE stepfast_raw
   SET gone_at = NULL, strikes = 0, applied_hash = CASE WHEN pending = 0 THEN content_hash END
 WHERE feed = %(feed)s AND item_id = ANY(CAST(%(ids)s AS TEXT[])) AND gone_at IS NOT NULL

-- runs.sweep_rows.FIND_OLD_GONE
SELECT item_id FROM stepfast_raw
 WHERE feed = %(feed)s AND item_id > %(after)s AND item_id <= %(until)s AND gone_at IS NOT NULL AND gone_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(keep)s
 ORDER BY item_id LIMIT %(limit)s

-- runs.sweep_rows.FORGET_GONE
DELETE FROM stepfast_raw WHERE feed = %(feed)s AND item_id = ANY(CAST(%(ids)s AS TEXT[])) AND gone_at IS NOT NULL AND gone_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(keep)s

-- runs.target.DATABASE_CLOCK
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- runs.watchdog.ACTIVE_RUNS
SELECT id, feed, state, stalled_in, shards, job_id, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - updated_at FROM stepfast_run
 WHERE ended_at IS NULL

-- runs.watchdog.FIND_ORPHANS
SELECT p.id FROM stepfast_partition p
 WHERE p.run_id = %(run_id)s AND p.state IN ('ready', 'running')
   AND (SELECT count(*) FROM stepfast_job j WHERE j.id = p.job_id) = 0
 LIMIT %(limit)s

-- runs.watchdog.ANY_OPEN_PARTITION
SELECT 1 FROM stepfast_partition WHERE run_id = %(run_id)s AND state IN ('ready', 'running') LIMIT 1

-- runs.watchdog.COUNT_LIVE_JOBS
SELECT count(*) FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- runs.watchdog.STILL_FOR
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - r.updated_at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - (SELECT max(p.updated_at) FROM stepfast_partition p WHERE p.run_id = r.id)
  FROM stepfast_run r WHERE r.id = %(run_id)s

-- runs.watchdog.LOCK_LIVE_JOBS
SELECT id FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[])) ORDER BY id FOR UPDATE

-- runs.watchdog.LOCK_ENDED_JOBS
SELECT state, last_error, id FROM stepfast_archive WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state IN ('dead', 'cancelled', 'done')
 ORDER BY id FOR UPDATE

-- runs.watchdog.FORGET_SHARDS
UPDATE stepfast_run SET shards = 0, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND epoch = %(epoch)s AND rounds = %(round)s AND shards > 0

-- runs.watchdog.STALL_RUN
UPDATE stepfast_run SET stalled_in = state, state = 'stalled', reason = %(reason)s
 WHERE id = %(id)s AND state = %(source)s AND epoch = %(epoch)s

-- runs.watchdog.PAUSED_QUEUE
SELECT 1 FROM stepfast_queue WHERE id = %(queue)s AND paused_at IS NOT NULL

-- runs.watchdog.WATERMARK_AGE
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + f.skew - COALESCE(f.watermark, (SELECT min(r.started_at) + f.skew FROM stepfast_run r WHERE r.feed = f.id))
  FROM stepfast_feed f WHERE f.id = %(feed)s

-- runs.watchdog.COUNT_DEAD_JOBS
SELECT count(*) FROM stepfast_archive WHERE state = 'dead' AND finished_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s AND kind = ANY(CAST(%(kinds)s AS TEXT[]))

-- runs.watchdog.LAST_DEAD_ERROR
SELECT last_error FROM stepfast_archive WHERE state = 'dead' AND kind = ANY(CAST(%(kinds)s AS TEXT[]))
 ORDER BY finished_at DESC LIMIT 1

-- runs.watchdog.NEXT_SEEN
SELECT min(partition_id) FROM stepfast_seen WHERE partition_id > %(after)s

-- runs.watchdog.IS_SEEN_NEEDED
SELECT p.id FROM stepfast_partition p JOIN stepfast_run r ON r.id = p.run_id
 WHERE p.id = %(id)s AND p.state NOT IN ('done', 'split')
   AND (r.ended_at IS NULL
        OR (r.state NOT IN ('completed', 'published_partial')
            AND NOT EXISTS (SELECT 1 FROM stepfast_run n
                             WHERE n.feed = r.feed AND n.started_at > r.started_at AND n.kind NOT IN ('backfill', 'remap'))))

-- runs.watchdog.END_OF_SEEN_BATCH
SELECT max(item_id) FROM (SELECT item_id FROM stepfast_seen WHERE partition_id = %(id)s ORDER BY item_id LIMIT %(limit)s) b

-- runs.watchdog.FORGET_SEEN
DELETE FROM stepfast_seen WHERE partition_id = %(id)s AND item_id <= %(until)s

-- runs.watchdog.FIND_OLD_RUN
SELECT r.id FROM stepfast_run r
 WHERE r.ended_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s AND NOT EXISTS (SELECT 1 FROM stepfast_feed f WHERE f.last_run = r.id)
 ORDER BY r.ended_at LIMIT 1

-- runs.watchdog.PARTITIONS_TO_FORGET
SELECT id FROM stepfast_partition WHERE run_id = %(run_id)s ORDER BY id LIMIT %(limit)s

-- runs.watchdog.END_OF_PAGE_BATCH
SELECT epoch, seq FROM stepfast_page WHERE partition_id = %(id)s ORDER BY epoch, seq LIMIT 1 OFFSET %(offset)s

-- runs.watchdog.FORGET_PAGES
DELETE FROM stepfast_page WHERE partition_id = %(id)s

-- runs.watchdog.FORGET_FIRST_PAGES
DELETE FROM stepfast_page WHERE partition_id = %(id)s AND (epoch < %(epoch)s OR (epoch = %(epoch)s AND seq <= %(seq)s))

-- runs.watchdog.FORGET_PARTITION
DELETE FROM stepfast_partition WHERE id = %(id)s

-- runs.watchdog.FORGET_RUN
DELETE FROM stepfast_run WHERE id = %(id)s AND ended_at IS NOT NULL

-- runs.watermark.MOVE_WATERMARK
UPDATE stepfast_feed
   SET watermark = %(watermark)s, version = version + 1, last_run = %(run_id)s, last_took = %(took)s,
       export_to = %(export_to)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(feed)s AND version = %(version)s

-- runs.watermark.SET_WATERMARK
UPDATE stepfast_feed SET watermark = %(watermark)s, version = version + 1, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(feed)s AND version = %(version)s

-- runs.watermark.RUN_COMPLETED_AT
SELECT COALESCE(completed_at, ended_at) FROM stepfast_run WHERE id = %(id)s

-- schedules.schedule.DATABASE_NOW
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- schedules.schedule.FIND_SCHEDULE
SELECT id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as, next_at, last_at, paused_at, removed_at, source, declared, note, changed_at, revision FROM stepfast_schedule WHERE id = %(id)s

-- schedules.schedule.LOCK_SCHEDULE
SELECT id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as, next_at, last_at, paused_at, removed_at, source, declared, note, changed_at, revision FROM stepfast_schedule WHERE id = %(id)s FOR UPDATE

-- schedules.schedule.LIST_SCHEDULES
SELECT id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as, next_at, last_at, paused_at, removed_at, source, declared, note, changed_at, revision FROM stepfast_schedule WHERE removed_at IS NULL OR %(everyone)s = 1 ORDER BY id

-- schedules.schedule.CREATE_SCHEDULE
INSERT INTO stepfast_schedule (id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as,
                               next_at, source, declared, note, changed_at, revision)
VALUES (%(id)s, %(kind)s, %(queue)s, %(priority)s, %(payload)s, %(cron)s, %(every)s, %(once_at)s, %(tz)s, %(missed)s, %(overlap)s, %(tick_as)s,
        %(next_at)s, %(source)s, %(declared)s, %(note)s, %(changed_at)s, %(revision)s)
ON CONFLICT DO NOTHING

-- schedules.schedule.WRITE_SCHEDULE
UPDATE stepfast_schedule
   SET kind = %(kind)s, queue = %(queue)s, priority = %(priority)s, payload = %(payload)s, cron = %(cron)s, every = %(every)s,
       once_at = %(once_at)s, tz = %(tz)s, missed = %(missed)s, overlap = %(overlap)s, tick_as = %(tick_as)s, next_at = %(next_at)s,
       paused_at = %(paused_at)s, removed_at = %(removed_at)s, source = %(source)s, declared = %(declared)s, note = %(note)s,
       changed_at = %(changed_at)s, revision = %(new_revision)s
 WHERE id = %(id)s AND revision = %(revision)s

-- schedules.schedule.DELETE_SCHEDULE
DELETE FROM stepfast_schedule WHERE id = %(id)s AND revision = %(revision)s

-- schedules.schedule.FORGET_SCHEDULES
DELETE FROM stepfast_schedule
 WHERE next_at IS NULL AND declared IS NULL AND COALESCE(last_at, once_at) < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s

-- schedules.schedule.DECLARED_SCHEDULES
SELECT id, declared FROM stepfast_schedule WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- schedules.schedule.NEXT_TICK
SELECT next_at - CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) FROM stepfast_schedule
 WHERE next_at IS NOT NULL AND paused_at IS NULL ORDER BY next_at LIMIT 1

-- schedules.schedule.DUE_SCHEDULES
SELECT id, kind, queue, priority, payload, cron, every, once_at, tz, missed, overlap, tick_as, next_at, last_at, paused_at, removed_at, source, declared, note, changed_at, revision FROM stepfast_schedule
 WHERE next_at <= %(now)s AND paused_at IS NULL ORDER BY next_at, id LIMIT %(limit)s

-- schedules.schedule.FREE_SCHEDULES
SELECT id FROM stepfast_schedule WHERE id = ANY(CAST(%(ids)s AS TEXT[])) ORDER BY id FOR UPDATE SKIP LOCKED

-- schedules.schedule.MOVE_SCHEDULE
UPDATE stepfast_schedule SET next_at = %(next_at)s, last_at = COALESCE(%(last_at)s, last_at)
 WHERE id = %(id)s AND next_at = %(due)s AND revision = %(revision)s AND paused_at IS NULL

-- tasks.enqueued_jobs.TRACE_OF_TASK
SELECT trace FROM stepfast_job WHERE id = %(id)s UNION ALL SELECT trace FROM stepfast_archive WHERE id = %(id)s

-- tasks.enqueued_jobs.UNFINISHED_JOBS_OF_TASK
SELECT queue, state, count(*), min(ready_at) - CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) FROM stepfast_job
 WHERE trace LIKE %(trace)s AND id <> %(id)s AND kind NOT LIKE 'task.%%' GROUP BY queue, state

-- tasks.enqueued_jobs.STATE_OF_TASK
SELECT state FROM stepfast_job WHERE id = %(id)s

-- tasks.enqueued_jobs.QUEUES_OF_WORKERS
SELECT queues FROM stepfast_worker WHERE state = 'alive' AND alive_until >= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- tasks.intake.COUNT_WAITING
SELECT count(*) FROM (
    SELECT 1 AS one FROM stepfast_job WHERE queue = %(queue)s AND state = 'ready' LIMIT %(limit)s
) waiting

-- tasks.intake.UNFINISHED_JOBS
SELECT id, state FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- tasks.receiver.SAVE_WEBHOOK
INSERT INTO stepfast_received (id, task_id, client, task_type, status, received_at, body)
VALUES (%(id)s, %(task_id)s, %(client)s, %(task_type)s, %(status)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), %(body)s)

-- tasks.receiver.FIND_WEBHOOK
SELECT 1 FROM stepfast_received WHERE id = %(id)s

-- tasks.receiver.WEBHOOKS_OF_TASK
SELECT id, body FROM stepfast_received
 WHERE task_id = %(task_id)s AND client = %(client)s ORDER BY received_at DESC, id DESC LIMIT %(limit)s

-- tasks.receiver.OLD_WEBHOOKS
SELECT id FROM stepfast_received WHERE received_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s ORDER BY received_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- tasks.receiver.FORGET_WEBHOOKS
DELETE FROM stepfast_received WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND received_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s

-- tasks.receiver.SIZE_OF_WEBHOOKS
SELECT COALESCE(SUM(OCTET_LENGTH(body)), 0) FROM stepfast_received

-- tasks.single_task.HAND_OVER_JOB
UPDATE stepfast_archive SET queue = %(queue)s WHERE id = %(id)s AND queue <> %(queue)s

-- tasks.store.KEEP_TASK
INSERT INTO stepfast_task (id, client, task_id, task_type, digest, webhook_url, source, message_id, received_at, until_at)
VALUES (%(id)s, %(client)s, %(task_id)s, %(task_type)s, %(digest)s, %(webhook_url)s, %(source)s, %(message_id)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(keep)s)
ON CONFLICT DO NOTHING

-- tasks.store.FIND_TASK
SELECT task_type, digest FROM stepfast_task WHERE id = %(id)s

-- tasks.store.FIND_KEY
SELECT job_id FROM stepfast_key WHERE id = %(id)s AND until_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- tasks.store.OLD_TASKS
SELECT id FROM stepfast_task WHERE until_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) ORDER BY until_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- tasks.store.FORGET_TASKS
DELETE FROM stepfast_task
 WHERE id = ANY(CAST(%(ids)s AS TEXT[]))
   AND NOT EXISTS (SELECT 1 FROM stepfast_job j WHERE j.id = stepfast_task.id)
   AND NOT EXISTS (SELECT 1 FROM stepfast_archive a WHERE a.id = stepfast_task.id)

-- tasks.store.MOVE_JOB
UPDATE stepfast_job SET queue = %(queue)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND queue <> %(queue)s

-- tasks.store.ADOPT_JOBS
UPDATE stepfast_job SET queue = %(queue)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE queue > %(first)s AND queue < %(last)s AND state IN ('ready', 'suspect') AND updated_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(after)s

-- tasks.store.TAKE_OVER_JOB
UPDATE stepfast_job SET queue = %(queue)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND queue > %(first)s AND queue < %(last)s

-- tasks.store.GIVE_UP_JOB
UPDATE stepfast_job SET fence = %(fence)s, error_group = %(error_group)s, last_error = %(error)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND state IN ('scheduled', 'ready', 'suspect', 'held')

-- tasks.store.JOB_COUNTERS
SELECT step, failures, crashes FROM stepfast_job WHERE id = %(id)s

-- tasks.store.TASK_ENDS
SELECT a.id, a.kind, a.state, COALESCE(a.last_error, ''), a.committed_fence, a.failures + a.crashes, a.finished_at,
       a.result, a.result_expired_at,
       (SELECT count(*) FROM stepfast_outbox o
         WHERE o.job_id = a.id AND o.state = 'waiting' AND o.dedupe_key LIKE 'task-end:%%')
  FROM stepfast_archive a WHERE a.id = ANY(CAST(%(ids)s AS TEXT[]))

-- tasks.store.RESEND_END
UPDATE stepfast_outbox
   SET state = 'waiting', attempts = 0, since_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), due_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), ended_at = NULL
 WHERE job_id = %(id)s AND dedupe_key = %(key)s AND state IN ('sent', 'dead')

-- tasks.store.FIND_END
SELECT 1 FROM stepfast_outbox WHERE job_id = %(id)s AND dedupe_key = %(key)s

-- tasks.store.UNSENT_END
SELECT id, last_error FROM stepfast_outbox
 WHERE job_id = %(id)s AND dedupe_key LIKE 'task-end:%%' AND state <> 'sent' ORDER BY seq DESC LIMIT 1

-- testing.crash.WORKERS_OF_PROCESS
SELECT incarnation FROM stepfast_worker WHERE process = %(process)s AND state = 'alive'

-- testing.crash.MARK_WORKER_GONE
UPDATE stepfast_worker
   SET process = %(process)s, alive_until = CASE WHEN %(known)s = 1 THEN 0 ELSE alive_until END
 WHERE incarnation = %(incarnation)s AND state = 'alive'

-- testing.draining.COUNT_LEASED_JOBS
SELECT count(*) FROM stepfast_job WHERE state = 'leased'

-- testing.draining.COUNT_LEASES_OF_DEAD
SELECT count(*) FROM stepfast_job
 WHERE state = 'leased' AND owner IN (SELECT incarnation FROM stepfast_worker WHERE state = 'dead')

-- testing.draining.REMAINING_WORK
    SELECT count(CASE WHEN state = 'leased' THEN 1 END), count(CASE WHEN state = 'ready' THEN 1 END),
           count(CASE WHEN state = 'suspect' THEN 1 END),
           count(CASE WHEN state = 'scheduled' THEN 1 END)
             + (SELECT count(*) FROM stepfast_limit WHERE due_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) + (
    SELECT count(*) FROM stepfast_limit l
     WHERE l.due_at IS NOT NULL AND l.slots > (SELECT count(*) FROM stepfast_slot s WHERE s.limit_id = l.id)
       AND EXISTS (SELECT 1 FROM stepfast_job h WHERE h.held_by = l.id AND h.state = 'held')
)
             + (SELECT count(*) 
      FROM stepfast_job s
     WHERE s.held_by = '(key)' AND s.state = 'held'
       AND NOT EXISTS (SELECT 1 FROM stepfast_job h
                        WHERE h.unique_key = SUBSTR(s.unique_key, 9) AND h.kind = s.kind)
),
           (SELECT count(*) FROM stepfast_schedule WHERE next_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND paused_at IS NULL),
           (SELECT count(*) FROM stepfast_outbox o WHERE o.due_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND 
    %(relay)s = 1 AND o.state = 'waiting' AND NOT EXISTS (
        SELECT 1 FROM stepfast_outbox e WHERE e.state = 'waiting' AND e.destination = o.destination AND e.seq < o.seq)
)
      FROM stepfast_job
     WHERE (%(anywhere)s = 1 OR queue = ANY(CAST(%(queues)s AS TEXT[]))) AND (
           (state = 'leased' AND owner IN (SELECT incarnation FROM stepfast_worker WHERE worker_id = %(worker_id)s))
        OR (state IN ('ready', 'suspect') AND ready_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND queue NOT IN (SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL))
        OR (state = 'scheduled' AND ready_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)))

-- testing.draining.NEXT_JOB_DUE
SELECT min(ready_at) FROM stepfast_job
 WHERE state IN ('scheduled', 'ready') AND ready_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND kind = ANY(CAST(%(kinds)s AS TEXT[]))
   AND (%(anywhere)s = 1 OR queue = ANY(CAST(%(queues)s AS TEXT[]))) AND queue NOT IN (SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL)
   AND id NOT IN (SELECT r.job_id FROM stepfast_run r
                   WHERE r.job_id IS NOT NULL AND r.ended_at IS NULL AND r.frontier LIKE %(held)s)

-- testing.draining.NEXT_RATE_DUE
SELECT min(due_at) FROM stepfast_limit WHERE due_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND gap > 0

-- testing.draining.NEXT_MESSAGE_DUE
SELECT min(o.due_at) FROM stepfast_outbox o WHERE o.due_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND 
    %(relay)s = 1 AND o.state = 'waiting' AND NOT EXISTS (
        SELECT 1 FROM stepfast_outbox e WHERE e.state = 'waiting' AND e.destination = o.destination AND e.seq < o.seq)

-- testing.inline_run.ANY_READY_JOB
SELECT id FROM stepfast_job WHERE state IN ('ready', 'suspect') AND ready_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) LIMIT 1

-- testing.jobs.UNFINISHED_JOBS
SELECT 
    id, kind, queue, state, priority, unique_key, step, failures, crashes, ready_at, created_at, last_error, cursor_json, payload
 FROM stepfast_job ORDER BY created_at, id

-- testing.jobs.FINISHED_JOBS
SELECT 
    id, kind, queue, state, priority, unique_key, step, failures, crashes, ready_at, created_at, last_error, cursor_json, payload
 FROM stepfast_archive ORDER BY created_at, id

-- testing.jobs.FENCES_AND_ERRORS
SELECT id, fence, last_error FROM stepfast_job

-- testing.jobs.JOBS_WITH_FENCES
SELECT 
    id, kind, queue, state, priority, unique_key, step, failures, crashes, ready_at, created_at, last_error, cursor_json, payload
, fence FROM stepfast_job ORDER BY created_at, id

-- testing.jobs.IDS_ENDED_SINCE
SELECT id FROM stepfast_archive
 WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= %(since)s

-- testing.jobs.JOBS_ENDED_SINCE
   SELECT 
   id, kind, queue, state, priority, unique_key, step, failures, crashes, ready_at, created_at, last_error, cursor_json, payload
FROM stepfast_archive
    WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= %(since)s
    ORDER BY created_at, id

-- testing.jobs.DATABASE_TIME
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- testing.test_clock.COUNT_WORKERS_OF_PROCESS
SELECT count(*) FROM stepfast_worker WHERE process = %(process)s AND state = 'alive'

-- testing.test_clock.EXTEND_WORKER_LEASES
UPDATE stepfast_worker SET alive_until = alive_until + %(passed)s, beat_at = beat_at + %(passed)s
 WHERE process = %(process)s AND state = 'alive'

-- transports.database.CREATE_QUEUE
INSERT INTO stepfast_message_queue (id) VALUES (%(queue)s) ON CONFLICT DO NOTHING

-- transports.database.FIND_QUEUE
SELECT id FROM stepfast_message_queue WHERE id = %(queue)s

-- transports.database.FORGET_IDS
UPDATE stepfast_message SET remembered = NULL
 WHERE queue = %(queue)s AND remembered = ANY(CAST(%(ids)s AS TEXT[]))
   AND (until_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) OR (state IN ('done', 'dead') AND sent_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(remembered)s))

-- transports.database.INSERT_MESSAGE
INSERT INTO stepfast_message (id, queue, message_id, remembered, visible_at, until_at, subject, properties, body)
VALUES (%(id)s, %(queue)s, %(message_id)s, %(message_id)s, CASE WHEN %(visible_at)s > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN %(visible_at)s ELSE CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) END,
        CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(lives_for)s, %(subject)s, %(properties)s, %(body)s)
ON CONFLICT DO NOTHING

-- transports.database.PICK_MESSAGES
SELECT id, message_id, body, attempts, subject, properties, sent_at, reason, detail, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
  FROM stepfast_message 
 WHERE queue = %(queue)s AND state = 'ready' AND visible_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND (until_at IS NULL OR until_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))
 ORDER BY visible_at, id
 LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- transports.database.PICK_DEAD_MESSAGES
SELECT id, message_id, body, attempts, subject, properties, sent_at, reason, detail, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
  FROM stepfast_message 
 WHERE queue = %(queue)s AND state = 'dead' AND visible_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND (until_at IS NULL OR until_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))
 ORDER BY visible_at, id
 LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- transports.database.TAKE_MESSAGES
UPDATE stepfast_message SET fence = %(fence)s, attempts = attempts + 1, visible_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(hold)s
 WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND state IN ('ready', 'dead') AND visible_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- transports.database.RENEW_MESSAGE
UPDATE stepfast_message SET visible_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(hold)s
 WHERE id = %(id)s AND fence = %(fence)s AND state IN ('ready', 'dead') AND visible_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- transports.database.RELEASE_MESSAGE
UPDATE stepfast_message SET fence = 0, visible_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(after)s
 WHERE id = %(id)s AND fence = %(fence)s AND state IN ('ready', 'dead') AND visible_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- transports.database.GIVE_BACK_MESSAGE
UPDATE stepfast_message SET fence = 0, visible_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), attempts = attempts - 1
 WHERE id = %(id)s AND fence = %(fence)s AND state IN ('ready', 'dead') AND visible_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- transports.database.COMPLETE_MESSAGE
UPDATE stepfast_message SET state = 'done', fence = 0, until_at = sent_at + %(remembered)s, body = '', detail = NULL
 WHERE id = %(id)s AND fence = %(fence)s AND state IN ('ready', 'dead') AND visible_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- transports.database.PUT_ASIDE_MESSAGE
UPDATE stepfast_message SET state = 'dead', fence = 0, visible_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), until_at = NULL,
                            reason = %(reason)s, detail = %(detail)s
 WHERE id = %(id)s AND fence = %(fence)s AND state = 'ready' AND visible_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- transports.database.PUT_ASIDE_WORN_OUT
UPDATE stepfast_message SET state = 'dead', fence = 0, visible_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), until_at = NULL,
                            reason = %(reason)s, detail = %(detail)s
 WHERE id = %(id)s AND state = 'ready' AND visible_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- transports.database.QUEUE_DEPTH
SELECT count(CASE WHEN state = 'ready' AND visible_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) THEN 1 END),
       count(CASE WHEN state = 'ready' AND visible_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND fence <> 0 THEN 1 END),
       count(CASE WHEN state = 'ready' AND visible_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND fence = 0 THEN 1 END),
       count(CASE WHEN state = 'dead' THEN 1 END)
  FROM stepfast_message
 WHERE queue = %(queue)s AND state IN ('ready', 'dead') AND (until_at IS NULL OR until_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))

-- transports.database.OLD_MESSAGES
SELECT id FROM stepfast_message WHERE until_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) ORDER BY until_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- transports.database.PRUNE_MESSAGES
DELETE FROM stepfast_message WHERE id = ANY(CAST(%(ids)s AS TEXT[])) AND until_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- transports.dead_messages.KEEP_DEAD_MESSAGE
INSERT INTO stepfast_dead_message (id, source, transport, address, queue, message_id, subject, attempts, reason, detail,
                                   sent_at, found_at, properties, body)
VALUES (%(id)s, %(source)s, %(transport)s, %(address)s, %(queue)s, %(message_id)s, %(subject)s, %(attempts)s, %(reason)s, %(detail)s,
        %(sent_at)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), %(properties)s, %(body)s)
ON CONFLICT DO NOTHING

-- transports.dead_messages.KEPT_MESSAGE
SELECT id FROM stepfast_dead_message WHERE source = %(source)s

-- transports.dead_messages.NEWEST_DEAD_MESSAGES
   SELECT id, transport, address, queue, message_id, subject, attempts, reason, detail, sent_at, found_at, properties, body FROM stepfast_dead_message WHERE 
   (%(any_kind)s = 1 OR subject = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
      AND (%(any_error)s = 1 OR reason = %(error_group)s)
ORDER BY found_at DESC, id DESC LIMIT %(limit)s

-- transports.dead_messages.OLDEST_DEAD_MESSAGES
   SELECT id, transport, address, queue, message_id, subject, attempts, reason, detail, sent_at, found_at, properties, body FROM stepfast_dead_message
    WHERE 
   (%(any_kind)s = 1 OR subject = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
      AND (%(any_error)s = 1 OR reason = %(error_group)s)
AND found_at <= %(until)s ORDER BY found_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- transports.dead_messages.COUNT_DEAD_MESSAGES
SELECT count(*) FROM stepfast_dead_message WHERE 
    (%(any_kind)s = 1 OR subject = %(kind)s) AND (%(any_queue)s = 1 OR queue = %(queue)s)
       AND (%(any_error)s = 1 OR reason = %(error_group)s)

-- transports.dead_messages.FIND_DEAD_MESSAGE
SELECT id, transport, address, queue, message_id, subject, attempts, reason, detail, sent_at, found_at, properties, body FROM stepfast_dead_message WHERE id = %(id)s

-- transports.dead_messages.REMOVE_DEAD_MESSAGES
DELETE FROM stepfast_dead_message WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- worker.deputy.VOUCH
UPDATE stepfast_worker SET alive_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(lease)s WHERE incarnation = %(incarnation)s AND state = 'alive'

-- worker.deputy.KIND_OF_JOB
SELECT kind FROM stepfast_job WHERE id = %(id)s

-- worker.heartbeat.REGISTER
INSERT INTO stepfast_worker (incarnation, worker_id, state, alive_until, lease, started_at, beat_at,
                             process, host, pid, concurrency, queues, guardian, guardian_pid, suspects_only)
VALUES (%(incarnation)s, %(worker_id)s, 'alive', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(lease)s, %(lease)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT),
        %(process)s, %(host)s, %(pid)s, %(concurrency)s, %(queues)s, %(guardian)s, %(guardian_pid)s, %(suspects_only)s)

-- worker.heartbeat.STAY_ALIVE
UPDATE stepfast_worker
   SET alive_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(lease)s, beat_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), active = %(active)s, active_ids = %(active_ids)s,
       guardian = %(guardian)s, guardian_pid = %(guardian_pid)s
 WHERE incarnation = %(incarnation)s AND state = 'alive'

-- worker.heartbeat.RESIGN
UPDATE stepfast_worker SET state = 'stopped', ended_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), active = 0, active_ids = NULL
 WHERE incarnation = %(incarnation)s AND state = 'alive'

-- worker.heartbeat.CLOCK
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- worker.heartbeat.STILL_MINE
SELECT id, fence, cancel_at FROM stepfast_job WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- worker.maintenance.DUE_JOBS
SELECT id, queue FROM stepfast_job WHERE state = 'scheduled' AND ready_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 ORDER BY ready_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- worker.maintenance.PROMOTE_JOBS
UPDATE stepfast_job
   SET state = CASE WHEN error_group = 'Lease expired - worker crashed or timed out' THEN 'suspect' ELSE 'ready' END, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- worker.maintenance.NEXT_DUE
SELECT (SELECT min(ready_at) FROM stepfast_job WHERE state = 'scheduled') - CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT),
       (SELECT min(due_at) FROM stepfast_limit WHERE due_at IS NOT NULL) - CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT),
       (SELECT count(*) FROM stepfast_job WHERE held_by = '(key)' AND state = 'held'),
       (SELECT count(*) FROM stepfast_job WHERE state = 'suspect')

-- worker.maintenance.LONG_LEASES
SELECT id, fence FROM stepfast_job
 WHERE owner = %(owner)s AND state = 'leased' AND leased_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s LIMIT %(limit)s

-- worker.maintenance.OLD_JOBS
SELECT id FROM stepfast_archive WHERE state = %(state)s AND finished_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s AND NOT EXISTS (
       SELECT 1 FROM stepfast_dependency d JOIN stepfast_job c ON c.id = d.child_id
        WHERE d.parent_id = stepfast_archive.id)
 ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- worker.maintenance.FORGET_WORKERS
DELETE FROM stepfast_worker
 WHERE state IN ('dead', 'stopped') AND ended_at < CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(age)s
   AND NOT EXISTS (SELECT 1 FROM stepfast_job WHERE owner = stepfast_worker.incarnation AND state = 'leased')

-- worker.relay.ANYTHING
SELECT CASE WHEN EXISTS (SELECT 1 FROM stepfast_outbox WHERE state = 'waiting') THEN 1 ELSE 0 END,
       CASE WHEN EXISTS (SELECT 1 FROM stepfast_alert
                          WHERE notify_at <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) AND notify_at > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) - %(too_old)s) THEN 1 ELSE 0 END,
       CASE WHEN EXISTS (SELECT 1 FROM stepfast_archive a
                          WHERE a.state = 'dead' AND a.finished_at > %(since)s
                            AND NOT EXISTS (SELECT 1 FROM stepfast_death d
                                             WHERE d.id = a.id AND d.finished_at = a.finished_at))
            THEN 1 ELSE 0 END

-- worker.relay.FIND_BOOKMARK
SELECT 1 FROM stepfast_bookmark WHERE id = %(id)s

-- worker.relay.BEGIN_BOOKMARK
INSERT INTO stepfast_bookmark (id, at) VALUES (%(id)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) ON CONFLICT DO NOTHING

-- worker.relay.LOCK_BOOKMARK
SELECT at, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) FROM stepfast_bookmark WHERE id = %(id)s FOR UPDATE SKIP LOCKED

-- worker.relay.MOVE_BOOKMARK
UPDATE stepfast_bookmark SET at = %(at)s WHERE id = %(id)s AND at <> %(at)s

-- worker.relay.NEW_DEAD_JOBS
SELECT a.id, a.kind, COALESCE(a.error_group, ''), a.queue, COALESCE(a.last_error, ''), a.finished_at, a.trace
  FROM stepfast_archive a
 WHERE a.state = 'dead' AND a.finished_at > %(since)s
   AND NOT EXISTS (SELECT 1 FROM stepfast_death d WHERE d.id = a.id AND d.finished_at = a.finished_at)
 ORDER BY a.finished_at LIMIT %(limit)s

-- worker.relay.FIND_RUNS
SELECT id FROM stepfast_run WHERE id = ANY(CAST(%(ids)s AS TEXT[]))

-- worker.relay.REMEMBER_DEAD_JOBS
INSERT INTO stepfast_death (id, finished_at) VALUES (%(id)s, %(finished_at)s) ON CONFLICT DO NOTHING

-- worker.relay.FORGET_DEAD_JOBS
DELETE FROM stepfast_death WHERE finished_at < %(before)s

-- worker.statement_watchdog.SESSIONS
SELECT pid, COALESCE(wait_event, '') FROM pg_stat_activity WHERE CAST(pid AS TEXT) = ANY(CAST(%(pids)s AS TEXT[]))

-- stepfast_diamonds.datasets.BUMP_VERSION
INSERT INTO dataset_versions (feed, version, changed_at) VALUES (%(feed)s, 1, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) ON CONFLICT (feed) DO UPDATE SET version = dataset_versions.version + 1, changed_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- stepfast_diamonds.datasets.READ_VERSION
SELECT version FROM dataset_versions WHERE feed = %(feed)s

-- stepfast_diamonds.demo.comparison.ROWS
SELECT id, supplier_stone_id, offer_id, feed, feed_price, carats, shape, color, availability, certificate_number,
       stale_since
  FROM diamonds
 WHERE deleted_at IS NULL AND id > %(after)s ORDER BY id LIMIT %(limit)s

-- stepfast_diamonds.demo.crash.CLOCK
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- stepfast_diamonds.demo.crash.BUSIEST
SELECT w.worker_id, count(*) AS pages
  FROM stepfast_worker w
  JOIN stepfast_job j ON j.owner = w.incarnation AND j.state = 'leased'
  JOIN stepfast_partition p ON p.job_id = j.id AND p.state = 'running'
 WHERE w.state = 'alive' GROUP BY w.worker_id ORDER BY pages DESC, w.worker_id

-- stepfast_diamonds.demo.crash.HELD
SELECT p.id, p.number, p.name, p.next_offset
  FROM stepfast_worker w
  JOIN stepfast_job j ON j.owner = w.incarnation AND j.state = 'leased'
  JOIN stepfast_partition p ON p.job_id = j.id AND p.state = 'running'
 WHERE w.worker_id = %(worker_id)s AND w.state = 'alive' ORDER BY p.number

-- stepfast_diamonds.demo.crash.NOTICED
SELECT ended_at FROM stepfast_worker WHERE worker_id = %(worker_id)s AND state = 'dead'

-- stepfast_diamonds.demo.crash.READ_SINCE
SELECT partition_id, worker_id, at FROM stepfast_page
 WHERE partition_id = ANY(CAST(%(ids)s AS TEXT[])) AND at > %(at)s ORDER BY at

-- stepfast_diamonds.feed.CLOCK
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- stepfast_diamonds.pace.READ_PACE
SELECT gap, changed_at, arrival, quiet_until, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) FROM nivoda_pace WHERE id = %(id)s

-- stepfast_diamonds.pace.LOCK_PACE
SELECT gap, changed_at, arrival, quiet_until, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) FROM nivoda_pace WHERE id = %(id)s FOR UPDATE

-- stepfast_diamonds.pace.CLOCK
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- stepfast_diamonds.pace.BEGIN_PACE
INSERT INTO nivoda_pace (id, gap, changed_at, arrival, quiet_until) VALUES (%(id)s, 0, 0, 0, 0) ON CONFLICT DO NOTHING

-- stepfast_diamonds.pace.WRITE_PACE
UPDATE nivoda_pace SET gap = %(gap)s, changed_at = %(changed_at)s, arrival = %(arrival)s, quiet_until = %(quiet_until)s
 WHERE id = %(id)s

-- stepfast_diamonds.repricing.COUNT_BEHIND
SELECT count(*) FROM diamonds WHERE ruleset_version <> %(version)s

-- stepfast_diamonds.repricing.LOWEST_AND_HIGHEST_VERSION
SELECT min(ruleset_version), max(ruleset_version) FROM diamonds

-- stepfast_diamonds.repricing.COUNT_BEHIND_IN_SCOPE
SELECT count(*) FROM diamonds WHERE ruleset_version <> %(version)s AND ruleset_version >= %(oldest)s AND ruleset_version <= %(newest)s
       AND updated_at >= %(since)s AND (feed = %(feed)s OR %(feed)s = '')

-- stepfast_diamonds.repricing.ANY_BEHIND_IN_SCOPE
SELECT 1 FROM diamonds WHERE ruleset_version <> %(version)s AND ruleset_version >= %(oldest)s AND ruleset_version <= %(newest)s
       AND updated_at >= %(since)s AND (feed = %(feed)s OR %(feed)s = '') LIMIT 1

-- stepfast_diamonds.repricing.READ_STONES_BEHIND
SELECT id, feed, ruleset_version, updated_at, supplier_stone_id, lab_grown, fancy_color, pricing_rating, rating, feed_price,
           price_model_price, markup_ratio, carats, table_pct, depth_pct, crown_angle, pavilion_angle, ratio, shape,
           color, clarity, cut, polish, symmetry, fluorescence_intensity, certificate_lab, girdle, culet_size FROM diamonds WHERE id > %(after)s AND ruleset_version <> %(version)s AND ruleset_version >= %(oldest)s AND ruleset_version <= %(newest)s
       AND updated_at >= %(since)s AND (feed = %(feed)s OR %(feed)s = '') ORDER BY id LIMIT %(limit)s

-- stepfast_diamonds.repricing.READ_ALL_STONES
SELECT id, feed, ruleset_version, updated_at, supplier_stone_id, lab_grown, fancy_color, pricing_rating, rating, feed_price,
           price_model_price, markup_ratio, carats, table_pct, depth_pct, crown_angle, pavilion_angle, ratio, shape,
           color, clarity, cut, polish, symmetry, fluorescence_intensity, certificate_lab, girdle, culet_size FROM diamonds WHERE deleted_at IS NULL AND id > %(after)s ORDER BY id LIMIT %(limit)s

-- stepfast_diamonds.repricing.LOCK_STONES
SELECT id, ruleset_version, updated_at FROM diamonds
 WHERE id >= %(first)s AND id <= %(last)s AND ruleset_version <> %(version)s
 ORDER BY id
FOR UPDATE

-- stepfast_diamonds.repricing.CLOCK
SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)

-- stepfast_diamonds.repricing.REPRICE_STONE
UPDATE diamonds
   SET price_model_price = %(price)s, markup_ratio = %(ratio)s, pricing_rating = %(pricing_rating)s, rating = %(rating)s,
       ruleset_version = %(version)s, updated_at = %(changed_at)s, stale_since = CASE WHEN stale_since IS NOT NULL AND EXISTS (
           SELECT 1 FROM stepfast_raw r
            WHERE r.feed = diamonds.feed AND r.item_id = diamonds.supplier_stone_id AND r.pending = 2
       ) THEN stale_since END
 WHERE id = %(id)s AND ruleset_version = %(before)s

-- stepfast_diamonds.repricing.KEEP_PRICE
UPDATE diamonds SET ruleset_version = %(version)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), stale_since = CASE WHEN stale_since IS NOT NULL AND EXISTS (
           SELECT 1 FROM stepfast_raw r
            WHERE r.feed = diamonds.feed AND r.item_id = diamonds.supplier_stone_id AND r.pending = 2
       ) THEN stale_since END
 WHERE id = %(id)s AND ruleset_version = %(before)s

-- stepfast_diamonds.repricing.MARK_UNPRICED
UPDATE diamonds SET ruleset_version = %(version)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), stale_since = COALESCE(stale_since, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))
 WHERE id = %(id)s AND ruleset_version = %(before)s

-- stepfast_diamonds.repricing.BEGIN_REPRICING
INSERT INTO repricings (id, job_id, from_version, to_version, state, started_at)
VALUES (%(id)s, %(job_id)s, %(from_version)s, %(to_version)s, 'running', CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))
ON CONFLICT DO NOTHING

-- stepfast_diamonds.repricing.SUPERSEDE_REPRICINGS
UPDATE repricings SET state = 'superseded', ended_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE job_id = %(job_id)s AND id <> %(id)s AND state = 'running'

-- stepfast_diamonds.repricing.COUNT_REPRICED
UPDATE repricings SET looked_at = looked_at + %(looked_at)s, changed = changed + %(changed)s, unpriced = unpriced + %(unpriced)s
 WHERE id = %(id)s AND state = 'running'

-- stepfast_diamonds.repricing.END_REPRICING
UPDATE repricings SET state = 'completed', ended_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND state = 'running'

-- stepfast_diamonds.repricing.OLDEST_SNAPSHOTS
SELECT min(repricing_id) FROM repricing_snapshots

-- stepfast_diamonds.repricing.LAST_KEPT_REPRICING
SELECT id FROM repricings ORDER BY id DESC LIMIT 1 OFFSET %(kept)s

-- stepfast_diamonds.repricing.LAST_SNAPSHOT_TO_FORGET
SELECT id FROM repricing_snapshots WHERE repricing_id = %(id)s ORDER BY id LIMIT 1 OFFSET %(most)s

-- stepfast_diamonds.repricing.FORGET_SNAPSHOTS
DELETE FROM repricing_snapshots WHERE repricing_id = %(id)s AND id <= %(until)s

-- stepfast_diamonds.repricing.FIND_REPRICING
   SELECT id, job_id, from_version, to_version, state, looked_at, changed, unpriced, started_at, ended_at
     FROM repricings
WHERE id = %(id)s

-- stepfast_diamonds.repricing.LIST_REPRICINGS
   SELECT id, job_id, from_version, to_version, state, looked_at, changed, unpriced, started_at, ended_at
     FROM repricings
ORDER BY started_at DESC, id DESC LIMIT %(limit)s

-- stepfast_diamonds.repricing.TAKE_REPRICING_BACK
UPDATE repricings SET state = 'reverting' WHERE id = %(id)s AND state IN ('running', 'completed')

-- stepfast_diamonds.repricing.END_TAKING_BACK
UPDATE repricings SET state = 'reverted', ended_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) WHERE id = %(id)s AND state = 'reverting'

-- stepfast_diamonds.repricing.COUNT_SNAPSHOTS
SELECT count(*) FROM repricing_snapshots WHERE repricing_id = %(id)s

-- stepfast_diamonds.repricing.READ_SNAPSHOTS
SELECT id, old_version, old_price, old_ratio, old_pricing_rating, old_rating, changed_at FROM repricing_snapshots
 WHERE repricing_id = %(repricing_id)s AND id > %(after)s
 ORDER BY id LIMIT %(limit)s

-- stepfast_diamonds.repricing.LOCK_REPRICED_STONES
SELECT id, updated_at, feed FROM diamonds
 WHERE id >= %(first)s AND id <= %(last)s AND ruleset_version = %(version)s
 ORDER BY id
FOR UPDATE

-- stepfast_diamonds.repricing.RESTORE_STONE
UPDATE diamonds
   SET price_model_price = %(price)s, markup_ratio = %(ratio)s, pricing_rating = %(pricing_rating)s, rating = %(rating)s,
       ruleset_version = %(before)s, updated_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND ruleset_version = %(version)s

-- stepfast_diamonds.rule_sets.READ_ACTIVE
SELECT version, previous FROM pricing_active WHERE id = 1

-- stepfast_diamonds.rule_sets.LOCK_ACTIVE
SELECT version, previous FROM pricing_active WHERE id = 1 FOR UPDATE

-- stepfast_diamonds.rule_sets.BEGIN_ACTIVE
INSERT INTO pricing_active (id, version, changed_at) VALUES (1, 0, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) ON CONFLICT DO NOTHING

-- stepfast_diamonds.rule_sets.SWITCH_ACTIVE
UPDATE pricing_active SET previous = version, version = %(version)s, changed_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = 1 AND version = %(before)s

-- stepfast_diamonds.rule_sets.LAST_VERSION
SELECT max(v.version)
  FROM (SELECT max(version) AS version FROM pricing_rule_sets
        UNION ALL SELECT max(version) FROM pricing_active
        UNION ALL SELECT max(previous) FROM pricing_active
        UNION ALL SELECT max(version) FROM pricing_pins
        UNION ALL SELECT max(ruleset_version) FROM diamonds) v

-- stepfast_diamonds.rule_sets.FIND_SAME_RULES
SELECT min(version) FROM pricing_rule_sets WHERE digest = %(digest)s

-- stepfast_diamonds.rule_sets.ADD_RULE_SET
INSERT INTO pricing_rule_sets (version, name, margin_natural, margin_lab, margin_fancy, rating_fallback,
                               declared_empty, digest, created_at, created_by)
VALUES (%(version)s, %(name)s, %(natural)s, %(lab)s, %(fancy)s, %(fallback)s, %(empty)s, %(digest)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), %(by)s)

-- stepfast_diamonds.rule_sets.ADD_PRICING_RULES
INSERT INTO pricing_rules (version, number, priority, stone_type, price_min, price_max, feed, margin_modifier, rating)
VALUES (%(version)s, %(number)s, %(priority)s, %(stone_type)s, %(price_min)s, %(price_max)s, %(feed)s, %(margin_modifier)s, %(rating)s)

-- stepfast_diamonds.rule_sets.ADD_RATING_RULES
INSERT INTO rating_rules (version, number, priority, rating, conditions)
VALUES (%(version)s, %(number)s, %(priority)s, %(rating)s, %(conditions)s)

-- stepfast_diamonds.rule_sets.FIND_RULE_SET
SELECT name, margin_natural, margin_lab, margin_fancy, rating_fallback, declared_empty, digest
  FROM pricing_rule_sets WHERE version = %(version)s

-- stepfast_diamonds.rule_sets.FORGET_RULE_SET
DELETE FROM pricing_rule_sets WHERE version = %(version)s

-- stepfast_diamonds.rule_sets.FORGET_PRICING_RULES
DELETE FROM pricing_rules WHERE version = %(version)s

-- stepfast_diamonds.rule_sets.FORGET_RATING_RULES
DELETE FROM rating_rules WHERE version = %(version)s

-- stepfast_diamonds.rule_sets.READ_PRICING_RULES
SELECT priority, stone_type, price_min, price_max, feed, margin_modifier, rating
  FROM pricing_rules WHERE version = %(version)s ORDER BY number

-- stepfast_diamonds.rule_sets.READ_RATING_RULES
SELECT priority, rating, conditions FROM rating_rules WHERE version = %(version)s ORDER BY number

-- stepfast_diamonds.rule_sets.LIST_FEEDS_AND_TYPES
SELECT DISTINCT feed, CASE WHEN fancy_color IS NOT NULL THEN 'fancy' WHEN lab_grown = 1 THEN 'lab' ELSE 'natural' END
  FROM diamonds

-- stepfast_diamonds.rule_sets.PIN_RULE_SET
INSERT INTO pricing_pins (run_id, feed, version, pinned_at) VALUES (%(run_id)s, %(feed)s, %(version)s, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))

-- stepfast_diamonds.rule_sets.READ_PIN
SELECT version, pinned_at FROM pricing_pins WHERE run_id = %(run_id)s

-- stepfast_diamonds.rule_sets.LIST_RULE_SETS
SELECT s.version, s.name, s.created_at, s.created_by, s.declared_empty, CASE WHEN a.version IS NULL THEN 0 ELSE 1 END,
       (SELECT count(*) FROM pricing_rules p WHERE p.version = s.version),
       (SELECT count(*) FROM rating_rules r WHERE r.version = s.version),
       (SELECT count(*) FROM diamonds d WHERE d.ruleset_version = s.version)
  FROM pricing_rule_sets s LEFT JOIN pricing_active a ON a.id = 1 AND a.version = s.version
 ORDER BY s.version DESC LIMIT %(limit)s

-- stepfast_diamonds.rule_sets.LIST_FEEDS
SELECT id FROM stepfast_feed

-- stepfast_diamonds.token.READ_TOKEN
SELECT sealed, renew_at - CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), version, turn_until - CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT), problem, trouble
  FROM nivoda_tokens WHERE id = %(id)s

-- stepfast_diamonds.token.BEGIN_TOKEN
INSERT INTO nivoda_tokens (id, version, changed_at) VALUES (%(id)s, 0, CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)) ON CONFLICT DO NOTHING

-- stepfast_diamonds.token.TAKE_TURN
UPDATE nivoda_tokens
   SET turn_of = %(me)s, turn_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(turn)s, problem = NULL, trouble = NULL, changed_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND version = %(version)s AND (turn_until IS NULL OR turn_until <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT))

-- stepfast_diamonds.token.KEEP_TOKEN
UPDATE nivoda_tokens
   SET sealed = %(sealed)s, renew_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(lasts)s, version = version + 1, turn_of = NULL, turn_until = NULL,
       problem = NULL, trouble = NULL, changed_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND turn_of = %(me)s

-- stepfast_diamonds.token.GIVE_TURN_UP
UPDATE nivoda_tokens
   SET version = version + 1, turn_of = NULL, turn_until = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + %(rest)s, problem = %(problem)s, trouble = %(trouble)s,
       changed_at = CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)
 WHERE id = %(id)s AND turn_of = %(me)s
