-- Runs. A worker is a partition there. One that was split is not shown: its pieces are. `partition-7` is the one with
-- number 7.
--
-- Until the plan is made at least one partition is expected; a run that ended without completing has failed at something,
-- if not at a partition. (The joined row makes PostgreSQL refuse to write through the view.)
-- only: postgresql
CREATE VIEW {view} AS
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
 WHERE {mark};

-- only: mariadb
CREATE ALGORITHM = TEMPTABLE VIEW {view} AS
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
 WHERE {mark};

-- only: sqlite
CREATE VIEW {view} AS
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
  FROM stepfast_run r
 WHERE {mark};
