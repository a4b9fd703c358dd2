-- Jobs that wait for something outside. Such a job is scheduled for the end of its patience; an event brings it forward.
-- An event goes to one wait, the oldest; without a wait it is kept for a while.

-- Sending an event and beginning to wait for it both lock its name first: neither can miss the other.
CREATE TABLE IF NOT EXISTS stepfast_event_name (
    id {label} NOT NULL PRIMARY KEY,
    at {instant} NOT NULL
) {table_options};

CREATE INDEX {if_not_exists} stepfast_event_name_at ON stepfast_event_name (at);

-- Events that no job has waited for yet.
CREATE TABLE IF NOT EXISTS stepfast_event (
    id {sequence},
    name {label} NOT NULL,
    event_id {key} NOT NULL,
    sent_at {instant} NOT NULL,
    until_at {instant} NOT NULL,
    payload {document} NOT NULL
) {table_options};

CREATE INDEX {if_not_exists} stepfast_event_of ON stepfast_event (name, id);
CREATE INDEX {if_not_exists} stepfast_event_until ON stepfast_event (until_at);

-- Jobs that wait, under the fence with which the wait began: when the job's fence has moved on, the wait is over.
CREATE TABLE IF NOT EXISTS stepfast_wait (
    id {sequence},
    name {label} NOT NULL,
    job_id {key} NOT NULL,
    fence BIGINT NOT NULL,
    until_at {instant} NOT NULL
) {table_options};

CREATE INDEX {if_not_exists} stepfast_wait_of ON stepfast_wait (name, id);
CREATE INDEX {if_not_exists} stepfast_wait_until ON stepfast_wait (until_at);
