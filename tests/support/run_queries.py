"""Queries about runs from the operators' documents, letter by letter, literals included.

`ABC123` and `YOUR_RUN_ID` are ids of no run; a test that wants an answer gives a run that name.
"""

from __future__ import annotations

from typing import Final

ABC123: Final = "abc123"
YOUR_RUN_ID: Final = "your-run-id"

# How a partition is read on, page by page.

PROGRESS_OF_A_RUN: Final = "SELECT * FROM partition_progress WHERE run_id = 'your-run-id';"
COMPLETED_OF_A_RUN: Final = (
    "SELECT * FROM partition_progress WHERE run_id = 'your-run-id' AND completed = true;"
)
ACTIVE_PARTITIONS: Final = """-- Active partitions
SELECT * FROM partition_progress
WHERE completed = false
ORDER BY updated_at DESC;"""
STUCK_PARTITIONS: Final = """-- Stuck partitions (no update in 10 minutes)
SELECT * FROM partition_progress
WHERE completed = false
  AND updated_at < NOW() - INTERVAL '10 minutes';"""
COMPLETION_OF_RUNS: Final = """-- Worker completion status
SELECT
  rm.run_id,
  rm.completed_workers,
  rm.expected_workers,
  rm.failed_workers
FROM run_metadata rm
WHERE rm.completed_at IS NULL;"""
ONE_PARTITION: Final = "SELECT * FROM partition_progress WHERE partition_id = 'stuck-partition';"

# How errors are recovered from.

LAST_SUCCESSFUL_RUN: Final = (
    "SELECT * FROM run_metadata WHERE completed_at IS NOT NULL ORDER BY completed_at DESC LIMIT 1;"
)

# The life of a run.

STATUS_OF_A_RUN: Final = """-- Get current run status
SELECT
  run_id,
  run_type,
  completed_workers || '/' || expected_workers AS progress,
  failed_workers,
  CASE
    WHEN completed_at IS NOT NULL THEN 'completed'
    WHEN failed_workers > 0 THEN 'failed'
    WHEN completed_workers < expected_workers THEN 'in_progress'
    ELSE 'consolidating'
  END AS status,
  started_at,
  completed_at,
  EXTRACT(EPOCH FROM (COALESCE(completed_at, NOW()) - started_at)) / 60 AS duration_minutes
FROM run_metadata
WHERE run_id = 'abc123';"""
WORKERS_OF_A_RUN: Final = """-- Get worker breakdown
SELECT
  partition_id,
  status,
  records_processed,
  error_message,
  started_at,
  completed_at
FROM worker_runs
WHERE run_id = 'abc123'
ORDER BY partition_id;"""
PARTITIONS_OF_A_RUN: Final = """-- Get partition progress
SELECT
  partition_id,
  next_offset,
  completed,
  updated_at
FROM partition_progress
WHERE run_id = 'abc123'
ORDER BY partition_id;"""
ACTIVE_RUNS: Final = """-- Active runs
SELECT
  run_id,
  run_type,
  completed_workers,
  expected_workers,
  failed_workers,
  started_at,
  NOW() - started_at AS elapsed
FROM run_metadata
WHERE completed_at IS NULL
ORDER BY started_at DESC;"""
RECENT_RUNS: Final = """-- Recent runs (last 24 hours)
SELECT
  run_id,
  run_type,
  completed_workers || '/' || expected_workers AS progress,
  CASE
    WHEN completed_at IS NOT NULL THEN 'completed'
    WHEN failed_workers > 0 THEN 'failed'
    ELSE 'in_progress'
  END AS status,
  started_at,
  completed_at,
  EXTRACT(EPOCH FROM (COALESCE(completed_at, NOW()) - started_at)) / 60 AS duration_minutes
FROM run_metadata
WHERE started_at > NOW() - INTERVAL '24 hours'
ORDER BY started_at DESC;"""
FAILED_WORKERS: Final = """-- Find failed workers
SELECT
  wr.partition_id,
  wr.records_processed,
  wr.error_message,
  wr.started_at,
  wr.completed_at
FROM worker_runs wr
JOIN run_metadata rm ON wr.run_id = rm.run_id
WHERE rm.run_id = 'abc123'
  AND wr.status = 'failed'
ORDER BY wr.started_at;"""
OPEN_AT_FAILURE: Final = """-- Check partition progress at failure
SELECT
  partition_id,
  next_offset,
  completed
FROM partition_progress
WHERE run_id = 'abc123'
  AND NOT completed;"""

EVERYWHERE: Final = (
    PROGRESS_OF_A_RUN,
    COMPLETED_OF_A_RUN,
    ACTIVE_PARTITIONS,
    COMPLETION_OF_RUNS,
    ONE_PARTITION,
    LAST_SUCCESSFUL_RUN,
    WORKERS_OF_A_RUN,
    PARTITIONS_OF_A_RUN,
    FAILED_WORKERS,
    OPEN_AT_FAILURE,
)
# `INTERVAL '10 minutes'` and `EXTRACT(EPOCH …)` are PostgreSQL's words; `NOW()` SQLite does not know either.
ON_POSTGRESQL: Final = (
    *EVERYWHERE,
    STUCK_PARTITIONS,
    STATUS_OF_A_RUN,
    ACTIVE_RUNS,
    RECENT_RUNS,
)
