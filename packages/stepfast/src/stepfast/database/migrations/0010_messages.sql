-- Queues of messages in the database itself: for who wants the same programs without a broker. A message is taken by
-- writing a fence and a time until which nobody else sees it.

CREATE TABLE IF NOT EXISTS stepfast_message_queue (
    id {key} NOT NULL PRIMARY KEY,
    created_at BIGINT NOT NULL DEFAULT ({now})
) {table_options};

-- state: ready (also while it is held, or scheduled: visible_at tells), done, dead. `remembered` is the message's id for
-- as long as a second one with it is swallowed; until_at says when the row may go.
CREATE TABLE IF NOT EXISTS stepfast_message (
    id {key} NOT NULL PRIMARY KEY,
    queue {key} NOT NULL,
    message_id {key} NOT NULL,
    remembered {key},
    state VARCHAR(10) NOT NULL DEFAULT 'ready',
    visible_at BIGINT NOT NULL DEFAULT ({now}),
    fence BIGINT NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    sent_at BIGINT NOT NULL DEFAULT ({now}),
    until_at BIGINT,
    subject {label} NOT NULL,
    properties {document} NOT NULL,
    body {document} NOT NULL,
    reason {label},
    detail {document}
) {with_limits} {table_options};

-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_message_ready ON stepfast_message (queue, visible_at, id) WHERE state = 'ready';
-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_message_dead ON stepfast_message (queue, visible_at, id) WHERE state = 'dead';
-- only: mariadb
CREATE INDEX stepfast_message_ready ON stepfast_message (queue, state, visible_at, id);

CREATE UNIQUE INDEX {if_not_exists} stepfast_message_remembered ON stepfast_message (queue, remembered);
CREATE INDEX {if_not_exists} stepfast_message_until ON stepfast_message (until_at);
