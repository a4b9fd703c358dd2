-- Tasks: messages of a queue, or of TASK_DATA, that became jobs. The row has the job's id, and the webhook that reports
-- the job's end; it stays for as long as the task's id is remembered in stepfast_key.
-- digest: of the payload; a message with the same task_id and another digest is another task.
CREATE TABLE IF NOT EXISTS stepfast_task (
    id {key} NOT NULL PRIMARY KEY,
    client {key} NOT NULL,
    task_id {label} NOT NULL,
    task_type {label} NOT NULL,
    digest VARCHAR(50),
    webhook_url {document},
    source VARCHAR(40) NOT NULL,
    message_id {label},
    received_at {instant} NOT NULL DEFAULT ({now}),
    until_at {instant} NOT NULL DEFAULT ({now})
) {table_options};

CREATE INDEX {if_not_exists} stepfast_task_name ON stepfast_task (task_id, client);
CREATE INDEX {if_not_exists} stepfast_task_received ON stepfast_task (client, received_at);
CREATE INDEX {if_not_exists} stepfast_task_until ON stepfast_task (until_at);

-- The other side: ends of tasks that a receiver of webhooks got. Each webhook is kept once, by its id.
CREATE TABLE IF NOT EXISTS stepfast_received (
    id {key} NOT NULL PRIMARY KEY,
    task_id {label} NOT NULL,
    client {label} NOT NULL,
    task_type {label} NOT NULL,
    status VARCHAR(20) NOT NULL,
    received_at {instant} NOT NULL DEFAULT ({now}),
    body {document} NOT NULL
) {table_options};

CREATE INDEX {if_not_exists} stepfast_received_task ON stepfast_received (task_id, received_at);
CREATE INDEX {if_not_exists} stepfast_received_at ON stepfast_received (received_at);
