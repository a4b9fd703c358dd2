-- The audit log: who did what, to what, and why. Written in the transaction of the action itself. A command that
-- works in batches has one row: each batch adds what it touched, and ended_at stays empty until the last one.
CREATE TABLE IF NOT EXISTS stepfast_audit (
    id {key} NOT NULL PRIMARY KEY,
    at {instant} NOT NULL,
    ended_at {instant},
    who {label} NOT NULL,
    what {label} NOT NULL,
    subject {label} NOT NULL,
    why {document},
    touched {total} NOT NULL,
    detail {document}
) {table_options};

CREATE INDEX {if_not_exists} stepfast_audit_at ON stepfast_audit (at, id);
CREATE INDEX {if_not_exists} stepfast_audit_subject ON stepfast_audit (subject, at);

-- Names of fields that applications hide, so that the command line, which loads no application, hides them too.
CREATE TABLE IF NOT EXISTS stepfast_mask (
    id {label} NOT NULL PRIMARY KEY,
    seen_at {instant} NOT NULL
) {table_options};

-- An id of these tables, since databases of two servers may have the same name. One row that never changes.
CREATE TABLE IF NOT EXISTS stepfast_installation (
    id INTEGER NOT NULL PRIMARY KEY,
    name {key} NOT NULL,
    made_at {instant} NOT NULL
) {table_options};

-- only: sqlite
INSERT INTO stepfast_installation (id, name, made_at) VALUES (1, lower(hex(randomblob(16))), {now}) {keep_existing};
-- only: postgresql
INSERT INTO stepfast_installation (id, name, made_at) VALUES (1, replace(CAST(gen_random_uuid() AS TEXT), '-', ''), {now}) {keep_existing};
-- only: mariadb
INSERT INTO stepfast_installation (id, name, made_at) VALUES (1, LOWER(HEX(RANDOM_BYTES(16))), {now}) {keep_existing};
