-- Who stepped in, what they did, to what, and why. Written in the transaction of the action itself. A command that
-- works in batches has one row: each batch adds what it touched, and ended_at stays empty until the last one.
CREATE TABLE IF NOT EXISTS stepfast_audit (
    id {key} NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL,
    ended_at BIGINT,
    who {label} NOT NULL,
    what {label} NOT NULL,
    subject {label} NOT NULL,
    why {document},
    touched BIGINT NOT NULL,
    detail {document}
) {table_options};

CREATE INDEX {if_not_exists} stepfast_audit_at ON stepfast_audit (at, id);
CREATE INDEX {if_not_exists} stepfast_audit_subject ON stepfast_audit (subject, at);

-- A result is kept for a shorter time than its job: then it is emptied, and this says when.
ALTER TABLE stepfast_archive ADD COLUMN result_expired_at BIGINT;

-- Which results are the oldest of their kind. Most jobs have none, and pay nothing here.
-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_archive_results ON stepfast_archive (kind, finished_at) WHERE result IS NOT NULL;
-- MariaDB has no partial indexes: a column that is empty where there is no result, and takes no room in the row.
-- only: mariadb
ALTER TABLE stepfast_archive ADD COLUMN result_kind {label} AS (CASE WHEN result IS NOT NULL THEN kind END) VIRTUAL;
-- only: mariadb
CREATE INDEX stepfast_archive_results ON stepfast_archive (result_kind, finished_at);
