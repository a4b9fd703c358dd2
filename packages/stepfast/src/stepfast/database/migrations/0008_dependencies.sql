-- Jobs that come after others: child_id waits for parent_id, and on_dead says what happens if that one dies or is
-- cancelled. `open`: it waits. `met`: it need not wait any more. `broken`: it ended because of this parent. The
-- completion job of a group waits for its members (bond 'member').
CREATE TABLE IF NOT EXISTS stepfast_dependency (
    child_id {key} NOT NULL,
    parent_id {key} NOT NULL,
    bond VARCHAR(10) NOT NULL,
    on_dead VARCHAR(10) NOT NULL,
    state VARCHAR(10) NOT NULL,
    PRIMARY KEY (child_id, parent_id)
) {table_options};

CREATE INDEX {if_not_exists} stepfast_dependency_parent ON stepfast_dependency (parent_id, state);

-- Whether a child still waits for anybody, also if a hundred thousand of its parents are done.
-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_dependency_open ON stepfast_dependency (child_id, parent_id) WHERE state = 'open';
-- only: mariadb
CREATE INDEX stepfast_dependency_open ON stepfast_dependency (state, child_id, parent_id);

-- Whoever ends a job looks here whether anybody may wait for it: all others pay nothing.
ALTER TABLE stepfast_job ADD COLUMN has_dependants INTEGER NOT NULL DEFAULT 0;

-- The operators' view, as before; a job that waits for others is pending.
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
DROP VIEW IF EXISTS processing_jobs;
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
