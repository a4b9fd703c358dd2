-- Messages that a broker put aside, or that nobody here understood: taken over from its dead-letter queue, so that there is
-- one list of dead letters and one way to retry them. `source` is the same for a message that is taken over twice.
CREATE TABLE IF NOT EXISTS stepfast_dead_message (
    id {key} NOT NULL PRIMARY KEY,
    source {key} NOT NULL,
    transport VARCHAR(40) NOT NULL,
    address {document} NOT NULL,
    queue {label} NOT NULL,
    message_id {label} NOT NULL,
    subject {label} NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    reason {label} NOT NULL,
    detail {document} NOT NULL,
    sent_at BIGINT,
    found_at BIGINT NOT NULL DEFAULT ({now}),
    properties {document} NOT NULL,
    body {document} NOT NULL
) {table_options};

CREATE UNIQUE INDEX {if_not_exists} stepfast_dead_message_source ON stepfast_dead_message (source);
CREATE INDEX {if_not_exists} stepfast_dead_message_found ON stepfast_dead_message (found_at);
