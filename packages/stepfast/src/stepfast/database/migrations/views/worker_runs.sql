-- Partitions that a worker has begun to read. The worker is the one that holds it, or committed its last page.
-- (PostgreSQL makes no jsonb of a NUL character: one such range would make the whole view unreadable.)
-- only: postgresql
CREATE VIEW {view} AS
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
 WHERE p.state <> 'split' AND (p.state <> 'ready' OR p.started_at IS NOT NULL OR j.state = 'leased') AND {mark};

-- only: mariadb
CREATE ALGORITHM = TEMPTABLE VIEW {view} AS
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
 WHERE p.state <> 'split' AND (p.state <> 'ready' OR p.started_at IS NOT NULL OR j.state = 'leased') AND {mark};

-- only: sqlite
CREATE VIEW {view} AS
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
 WHERE p.state <> 'split' AND (p.state <> 'ready' OR p.started_at IS NOT NULL OR j.state = 'leased') AND {mark};
