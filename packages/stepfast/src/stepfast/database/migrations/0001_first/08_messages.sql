-- Queues of messages in the database itself, to run the same programs without a broker. A message is taken by writing a
-- fence and a time until which it is invisible to others.

CREATE TABLE IF NOT EXISTS stepfast_message_queue (
    id {key} NOT NULL PRIMARY KEY,
    created_at {instant} NOT NULL DEFAULT ({now})
) {table_options};

-- state: ready (also while it is held, or scheduled: visible_at tells), done, dead. `remembered` is the message's id for
-- as long as a second message with this id is swallowed; until_at says when the row may go.
CREATE TABLE IF NOT EXISTS stepfast_message (
    id {key} NOT NULL PRIMARY KEY,
    queue {key} NOT NULL,
    message_id {key} NOT NULL,
    remembered {key},
    state {queued_state} NOT NULL DEFAULT 'ready',
    visible_at {instant} NOT NULL DEFAULT ({now}),
    fence BIGINT NOT NULL DEFAULT 0,
    attempts {counter} NOT NULL DEFAULT 0,
    sent_at {instant} NOT NULL DEFAULT ({now}),
    until_at {instant},
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

-- Messages that a broker put aside, or that no worker understood: taken over from its dead-letter queue, so that there
-- is one list of dead letters and one way to retry them. `source` is the same for a message that is taken over twice.
CREATE TABLE IF NOT EXISTS stepfast_dead_message (
    id {key} NOT NULL PRIMARY KEY,
    source {key} NOT NULL,
    transport VARCHAR(40) NOT NULL,
    address {document} NOT NULL,
    queue {label} NOT NULL,
    message_id {label} NOT NULL,
    subject {label} NOT NULL,
    attempts {counter} NOT NULL DEFAULT 0,
    reason {label} NOT NULL,
    detail {document} NOT NULL,
    sent_at {instant},
    found_at {instant} NOT NULL DEFAULT ({now}),
    properties {document} NOT NULL,
    body {document} NOT NULL
) {table_options};

CREATE UNIQUE INDEX {if_not_exists} stepfast_dead_message_source ON stepfast_dead_message (source);
CREATE INDEX {if_not_exists} stepfast_dead_message_found ON stepfast_dead_message (found_at);
