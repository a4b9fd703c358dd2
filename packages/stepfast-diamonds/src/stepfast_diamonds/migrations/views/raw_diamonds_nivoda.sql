-- Raw rows for a person at a SQL prompt. Read-only. (The joined row makes PostgreSQL refuse to write through the view.)
-- only: postgresql
CREATE VIEW {view} AS
SELECT r.feed AS feed, r.item_id AS supplier_stone_id, CAST(r.payload AS JSON) ->> 'id' AS offer_id, r.payload AS payload,
       r.content_hash AS content_hash, r.run_id AS run_id, to_timestamp(r.observed_at / 1000000.0) AS observed_at,
       CASE r.pending WHEN 0 THEN true ELSE false END AS consolidated, to_timestamp(r.applied_at / 1000000.0) AS consolidated_at
  FROM stepfast_raw r CROSS JOIN (SELECT 1) AS read_only
 WHERE r.feed IN ('nivoda-natural', 'nivoda-labgrown') AND {mark};

-- only: mariadb
CREATE ALGORITHM = TEMPTABLE VIEW {view} AS
SELECT r.feed AS feed, r.item_id AS supplier_stone_id, JSON_VALUE(r.payload, '$.id') AS offer_id, r.payload AS payload,
       r.content_hash AS content_hash, r.run_id AS run_id, FROM_UNIXTIME(r.observed_at * 0.000001) AS observed_at,
       CASE r.pending WHEN 0 THEN TRUE ELSE FALSE END AS consolidated, FROM_UNIXTIME(r.applied_at * 0.000001) AS consolidated_at
  FROM stepfast_raw r
 WHERE r.feed IN ('nivoda-natural', 'nivoda-labgrown') AND {mark};

-- only: sqlite
CREATE VIEW {view} AS
SELECT r.feed AS feed, r.item_id AS supplier_stone_id, json_extract(r.payload, '$.id') AS offer_id, r.payload AS payload,
       r.content_hash AS content_hash, r.run_id AS run_id, strftime('%Y-%m-%d %H:%M:%f', r.observed_at / 1000000.0, 'unixepoch') AS observed_at,
       CASE r.pending WHEN 0 THEN 1 ELSE 0 END AS consolidated, strftime('%Y-%m-%d %H:%M:%f', r.applied_at / 1000000.0, 'unixepoch') AS consolidated_at
  FROM stepfast_raw r
 WHERE r.feed IN ('nivoda-natural', 'nivoda-labgrown') AND {mark};
