-- All jobs, with the words of the operators' documents. One that is scheduled or waits for others is pending. Read-only.
-- (PostgreSQL reads nothing of a document that holds a NUL character: without a look at it first, one such
-- payload would make the whole view unreadable.)
-- only: postgresql
CREATE VIEW {view} AS
SELECT j.id, CAST(COALESCE(j.unique_key, j.id) AS TEXT) AS job_id, CASE WHEN position('\u0000' IN CAST(j.payload AS TEXT)) = 0 THEN j.payload ->> 'order_id' END AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' WHEN 'waiting' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CAST(CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS VARCHAR(100)) AS locked_by,
       CASE j.state WHEN 'leased' THEN to_timestamp(COALESCE(j.lease_until, w.alive_until) / 1000000.0) END AS locked_until,
       j.last_error, to_timestamp(j.created_at / 1000000.0) AS created_at,
       to_timestamp(greatest(j.updated_at, CASE j.state WHEN 'leased' THEN w.beat_at END) / 1000000.0) AS updated_at,
       CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS finished_at
  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE {mark}
UNION ALL
SELECT a.id, CAST(COALESCE(a.unique_key, a.id) AS TEXT), CASE WHEN position('\u0000' IN a.payload) = 0 THEN CAST(a.payload AS JSON) ->> 'order_id' END, a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       CAST(NULL AS VARCHAR(100)), CAST(NULL AS TIMESTAMP WITH TIME ZONE),
       a.last_error, to_timestamp(a.created_at / 1000000.0), to_timestamp(a.finished_at / 1000000.0),
       to_timestamp(a.finished_at / 1000000.0)
  FROM stepfast_archive a;

-- only: mariadb
CREATE VIEW {view} AS
SELECT j.id, COALESCE(j.unique_key, j.id) AS job_id, JSON_VALUE(j.payload, '$.order_id') AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' WHEN 'waiting' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS locked_by,
       CASE j.state WHEN 'leased' THEN FROM_UNIXTIME(COALESCE(j.lease_until, w.alive_until) / 1000000) END AS locked_until,
       j.last_error, FROM_UNIXTIME(j.created_at / 1000000) AS created_at,
       FROM_UNIXTIME(greatest(j.updated_at, COALESCE(CASE j.state WHEN 'leased' THEN w.beat_at END, 0)) / 1000000) AS updated_at,
       CAST(NULL AS DATETIME(6)) AS finished_at
  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE {mark}
UNION ALL
SELECT a.id, COALESCE(a.unique_key, a.id), JSON_VALUE(a.payload, '$.order_id'), a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       NULL, NULL, a.last_error, FROM_UNIXTIME(a.created_at / 1000000), FROM_UNIXTIME(a.finished_at / 1000000),
       FROM_UNIXTIME(a.finished_at / 1000000)
  FROM stepfast_archive a;

-- only: sqlite
CREATE VIEW {view} AS
SELECT j.id, COALESCE(j.unique_key, j.id) AS job_id, json_extract(j.payload, '$.order_id') AS order_id, j.kind AS job_type,
       CASE j.state WHEN 'leased' THEN 'processing' WHEN 'scheduled' THEN 'pending' WHEN 'waiting' THEN 'pending' ELSE 'queued' END AS status,
       j.progress, j.failures + j.crashes + CASE j.state WHEN 'leased' THEN 1 ELSE 0 END AS attempts,
       CASE j.state WHEN 'leased' THEN COALESCE(j.leased_by, w.worker_id) END AS locked_by,
       CASE j.state WHEN 'leased' THEN strftime('%Y-%m-%d %H:%M:%f', COALESCE(j.lease_until, w.alive_until) / 1000000.0, 'unixepoch') END AS locked_until,
       j.last_error, strftime('%Y-%m-%d %H:%M:%f', j.created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', max(j.updated_at, COALESCE(CASE j.state WHEN 'leased' THEN w.beat_at END, 0)) / 1000000.0, 'unixepoch') AS updated_at,
       NULL AS finished_at
  FROM stepfast_job j LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
 WHERE {mark}
UNION ALL
SELECT a.id, COALESCE(a.unique_key, a.id), json_extract(a.payload, '$.order_id'), a.kind,
       CASE a.state WHEN 'done' THEN 'done' ELSE 'failed' END,
       a.progress, a.failures + a.crashes + CASE a.state WHEN 'done' THEN 1 ELSE 0 END,
       NULL, NULL, a.last_error, strftime('%Y-%m-%d %H:%M:%f', a.created_at / 1000000.0, 'unixepoch'),
       strftime('%Y-%m-%d %H:%M:%f', a.finished_at / 1000000.0, 'unixepoch'),
       strftime('%Y-%m-%d %H:%M:%f', a.finished_at / 1000000.0, 'unixepoch')
  FROM stepfast_archive a;

-- An INSERT is refused with the table to insert into. (MariaDB has no triggers on views, and refuses it in its own words.)
-- only: postgresql
CREATE OR REPLACE FUNCTION stepfast_refuse_insert() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = 'cannot insert into the view ' || TG_TABLE_NAME || '; insert the job into stepfast_job', HINT = 'INSERT INTO stepfast_job (id, kind, payload) VALUES (...)'; END$$;

-- only: postgresql
DROP TRIGGER IF EXISTS stepfast_refuse_insert ON {view};

-- only: postgresql
CREATE TRIGGER stepfast_refuse_insert INSTEAD OF INSERT ON {view} FOR EACH ROW EXECUTE PROCEDURE stepfast_refuse_insert();

-- only: sqlite
CREATE TRIGGER {view}_refuse_insert INSTEAD OF INSERT ON {view}
BEGIN SELECT RAISE(ABORT, 'cannot insert into the view {view}; insert the job into stepfast_job: INSERT INTO stepfast_job (id, kind, payload) VALUES (...)'); END;
