-- Every partition, from the moment its run is planned. One that failed or was cancelled is not completed.
-- only: postgresql
CREATE VIEW {view} AS
SELECT CAST(p.run_id AS TEXT) AS run_id, 'partition-' || p.number AS partition_id,
       CAST(least(p.next_offset, 2147483647) AS INTEGER) AS next_offset,
       p.state IN ('done', 'done_unverified') AS completed,
       to_timestamp(p.created_at / 1000000.0) AS created_at, to_timestamp(p.updated_at / 1000000.0) AS updated_at
  FROM stepfast_partition p CROSS JOIN (SELECT 1) AS read_only
 WHERE p.state <> 'split' AND {mark};

-- only: mariadb
CREATE ALGORITHM = TEMPTABLE VIEW {view} AS
SELECT p.run_id, CONCAT('partition-', p.number) AS partition_id, CAST(p.next_offset AS SIGNED) AS next_offset,
       p.state IN ('done', 'done_unverified') AS completed,
       FROM_UNIXTIME(p.created_at * 0.000001) AS created_at, FROM_UNIXTIME(p.updated_at * 0.000001) AS updated_at
  FROM stepfast_partition p
 WHERE p.state <> 'split' AND {mark};

-- only: sqlite
CREATE VIEW {view} AS
SELECT p.run_id, 'partition-' || p.number AS partition_id, p.next_offset,
       p.state IN ('done', 'done_unverified') AS completed,
       strftime('%Y-%m-%d %H:%M:%f', p.created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', p.updated_at / 1000000.0, 'unixepoch') AS updated_at
  FROM stepfast_partition p
 WHERE p.state <> 'split' AND {mark};
