-- Views for a person at a SQL prompt, under the names and with the words of the operators' documents. Read-only.
--
-- Jobs. One that is scheduled or waits for others is pending.
-- (PostgreSQL reads nothing of a document that holds a NUL character: without a look at it first, one such
-- payload would make the whole view unreadable.)
-- only: postgresql
CREATE OR REPLACE VIEW processing_jobs AS
SELECT j.id, CAST(COALESCE(j.unique_key, j.id) AS TEXT) AS job_id, CASE WHEN position('\u0000' IN CAST(j.payload AS TEXT)) = 0 THEN j.payload ->> 'order_id' END AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' WHEN 'waiting' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CAST(CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS VARCHAR(100)) AS locked_by,
       CASE j.state WHEN 'leased' THEN to_timestamp(COALESCE(j.lease_until, w.alive_until) / 1000000.0) END AS locked_until,
       j.last_error, to_timestamp(j.created_at / 1000000.0) AS created_at,
       to_timestamp(greatest(j.updated_at, CASE j.state WHEN 'leased' THEN w.beat_at END) / 1000000.0) AS updated_at,
       CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS finished_at
  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
UNION ALL
SELECT a.id, CAST(COALESCE(a.unique_key, a.id) AS TEXT), CASE WHEN position('\u0000' IN a.payload) = 0 THEN CAST(a.payload AS JSON) ->> 'order_id' END, a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       CAST(NULL AS VARCHAR(100)), CAST(NULL AS TIMESTAMP WITH TIME ZONE),
       a.last_error, to_timestamp(a.created_at / 1000000.0), to_timestamp(a.finished_at / 1000000.0),
       to_timestamp(a.finished_at / 1000000.0)
  FROM stepfast_archive a;

-- only: mariadb
CREATE OR REPLACE VIEW processing_jobs AS
SELECT j.id, COALESCE(j.unique_key, j.id) AS job_id, JSON_VALUE(j.payload, '$.order_id') AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' WHEN 'waiting' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS locked_by,
       CASE j.state WHEN 'leased' THEN FROM_UNIXTIME(COALESCE(j.lease_until, w.alive_until) / 1000000) END AS locked_until,
       j.last_error, FROM_UNIXTIME(j.created_at / 1000000) AS created_at,
       FROM_UNIXTIME(greatest(j.updated_at, COALESCE(CASE j.state WHEN 'leased' THEN w.beat_at END, 0)) / 1000000) AS updated_at,
       CAST(NULL AS DATETIME(6)) AS finished_at
  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
UNION ALL
SELECT a.id, COALESCE(a.unique_key, a.id), JSON_VALUE(a.payload, '$.order_id'), a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       NULL, NULL, a.last_error, FROM_UNIXTIME(a.created_at / 1000000), FROM_UNIXTIME(a.finished_at / 1000000),
       FROM_UNIXTIME(a.finished_at / 1000000)
  FROM stepfast_archive a;

-- only: sqlite
CREATE VIEW IF NOT EXISTS processing_jobs AS
SELECT j.id, COALESCE(j.unique_key, j.id) AS job_id, json_extract(j.payload, '$.order_id') AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' WHEN 'waiting' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS locked_by,
       CASE j.state WHEN 'leased' THEN strftime('%Y-%m-%d %H:%M:%f', COALESCE(j.lease_until, w.alive_until) / 1000000.0, 'unixepoch') END AS locked_until,
       j.last_error, strftime('%Y-%m-%d %H:%M:%f', j.created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', max(j.updated_at, COALESCE(CASE j.state WHEN 'leased' THEN w.beat_at END, 0)) / 1000000.0, 'unixepoch') AS updated_at,
       NULL AS finished_at
  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
UNION ALL
SELECT a.id, COALESCE(a.unique_key, a.id), json_extract(a.payload, '$.order_id'), a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       NULL, NULL, a.last_error, strftime('%Y-%m-%d %H:%M:%f', a.created_at / 1000000.0, 'unixepoch'),
       strftime('%Y-%m-%d %H:%M:%f', a.finished_at / 1000000.0, 'unixepoch'),
       strftime('%Y-%m-%d %H:%M:%f', a.finished_at / 1000000.0, 'unixepoch')
  FROM stepfast_archive a;

-- Runs. A worker is a partition there. One that was split is not shown: its pieces are. `partition-7` is the one with
-- number 7.
--
-- Until the plan is made at least one partition is expected; a run that ended without completing has failed at something,
-- if not at a partition. (The joined row makes PostgreSQL refuse to write through the view.)
-- only: postgresql
CREATE OR REPLACE VIEW run_metadata AS
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
  FROM stepfast_run r CROSS JOIN (SELECT 1) AS read_only;

-- only: mariadb
CREATE OR REPLACE ALGORITHM = TEMPTABLE VIEW run_metadata AS
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
  FROM stepfast_run r;

-- only: sqlite
CREATE VIEW IF NOT EXISTS run_metadata AS
SELECT r.id AS run_id,
       CASE WHEN r.window_from IS NULL THEN 'full' ELSE 'incremental' END AS run_type,
       CASE WHEN r.state = 'planning' OR r.stalled_in = 'planning' THEN 1
            ELSE (SELECT count(*) FROM stepfast_partition p WHERE p.run_id = r.id AND p.state <> 'split')
       END AS expected_workers,
       (SELECT count(*) FROM stepfast_partition p
         WHERE p.run_id = r.id AND p.state IN ('done', 'done_unverified')) AS completed_workers,
       max((SELECT count(*) FROM stepfast_partition p WHERE p.run_id = r.id AND p.state IN ('failed', 'cancelled')),
           CASE WHEN r.ended_at IS NOT NULL AND r.state <> 'completed' THEN 1 ELSE 0 END) AS failed_workers,
       strftime('%Y-%m-%d %H:%M:%f', r.watermark_before / 1000000.0, 'unixepoch') AS watermark_before,
       strftime('%Y-%m-%d %H:%M:%f', r.watermark_after / 1000000.0, 'unixepoch') AS watermark_after,
       strftime('%Y-%m-%d %H:%M:%f', r.started_at / 1000000.0, 'unixepoch') AS started_at,
       CASE r.state WHEN 'completed' THEN strftime('%Y-%m-%d %H:%M:%f', r.completed_at / 1000000.0, 'unixepoch') END AS completed_at
  FROM stepfast_run r;

-- Partitions that a worker has begun to read. The worker is the one that holds it, or committed its last page.
-- (PostgreSQL makes no jsonb of a NUL character: one such range would make the whole view unreadable.)
-- only: postgresql
CREATE OR REPLACE VIEW worker_runs AS
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
 WHERE p.state <> 'split' AND (p.state <> 'ready' OR p.started_at IS NOT NULL OR j.state = 'leased');

-- only: mariadb
CREATE OR REPLACE ALGORITHM = TEMPTABLE VIEW worker_runs AS
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
 WHERE p.state <> 'split' AND (p.state <> 'ready' OR p.started_at IS NOT NULL OR j.state = 'leased');

-- only: sqlite
CREATE VIEW IF NOT EXISTS worker_runs AS
SELECT p.id, p.run_id, 'partition-' || p.number AS partition_id,
       COALESCE(CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END, p.worker_id, 'unknown') AS worker_id,
       CASE WHEN p.state IN ('done', 'done_unverified') THEN 'completed'
            WHEN p.state IN ('failed', 'cancelled') THEN 'failed' ELSE 'running' END AS status,
       p.seen AS records_processed,
       CASE WHEN p.state IN ('ready', 'running') THEN CASE WHEN j.failures + j.crashes > 0 THEN j.last_error
                                                           WHEN p.troubled_at >= p.updated_at THEN p.last_error END
            WHEN p.state = 'cancelled' THEN COALESCE(p.last_error, 'cancelled')
            WHEN p.state <> 'done' THEN p.last_error END AS error_message,
       json_object('range', json(p.span), 'window', json_object(
           'from', strftime('%Y-%m-%dT%H:%M:%fZ', p.window_from / 1000000.0, 'unixepoch'),
           'to', strftime('%Y-%m-%dT%H:%M:%fZ', p.window_to / 1000000.0, 'unixepoch'))) AS work_item_payload,
       strftime('%Y-%m-%d %H:%M:%f', COALESCE(p.started_at, j.leased_at, p.created_at) / 1000000.0, 'unixepoch') AS started_at,
       CASE WHEN p.state NOT IN ('ready', 'running') THEN strftime('%Y-%m-%d %H:%M:%f', p.ended_at / 1000000.0, 'unixepoch') END AS completed_at
  FROM stepfast_partition p LEFT JOIN stepfast_job j ON j.id = p.job_id LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE p.state <> 'split' AND (p.state <> 'ready' OR p.started_at IS NOT NULL OR j.state = 'leased');

-- Every partition, from the moment its run is planned. One that failed or was cancelled is not completed.
-- only: postgresql
CREATE OR REPLACE VIEW partition_progress AS
SELECT CAST(p.run_id AS TEXT) AS run_id, 'partition-' || p.number AS partition_id,
       CAST(least(p.next_offset, 2147483647) AS INTEGER) AS next_offset,
       p.state IN ('done', 'done_unverified') AS completed,
       to_timestamp(p.created_at / 1000000.0) AS created_at, to_timestamp(p.updated_at / 1000000.0) AS updated_at
  FROM stepfast_partition p CROSS JOIN (SELECT 1) AS read_only
 WHERE p.state <> 'split';

-- only: mariadb
CREATE OR REPLACE ALGORITHM = TEMPTABLE VIEW partition_progress AS
SELECT p.run_id, CONCAT('partition-', p.number) AS partition_id, CAST(p.next_offset AS SIGNED) AS next_offset,
       p.state IN ('done', 'done_unverified') AS completed,
       FROM_UNIXTIME(p.created_at * 0.000001) AS created_at, FROM_UNIXTIME(p.updated_at * 0.000001) AS updated_at
  FROM stepfast_partition p
 WHERE p.state <> 'split';

-- only: sqlite
CREATE VIEW IF NOT EXISTS partition_progress AS
SELECT p.run_id, 'partition-' || p.number AS partition_id, p.next_offset,
       p.state IN ('done', 'done_unverified') AS completed,
       strftime('%Y-%m-%d %H:%M:%f', p.created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', p.updated_at / 1000000.0, 'unixepoch') AS updated_at
  FROM stepfast_partition p
 WHERE p.state <> 'split';
