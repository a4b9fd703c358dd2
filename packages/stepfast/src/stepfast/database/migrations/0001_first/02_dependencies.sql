-- Jobs that come after others: child_id waits for parent_id, and on_dead says what happens if that one dies or is
-- cancelled. `open`: it waits. `met`: it need not wait any more. `broken`: it ended because of this parent. The
-- completion job of a group waits for its members (bond 'member').
CREATE TABLE IF NOT EXISTS stepfast_dependency (
    child_id {key} NOT NULL,
    parent_id {key} NOT NULL,
    bond {bond} NOT NULL,
    on_dead {on_dead} NOT NULL,
    state {edge_state} NOT NULL,
    PRIMARY KEY (child_id, parent_id)
) {table_options};

CREATE INDEX {if_not_exists} stepfast_dependency_parent ON stepfast_dependency (parent_id, state);

-- Whether a child still waits for a parent, fast also if a hundred thousand of its parents are done.
-- only: postgresql, sqlite
CREATE INDEX IF NOT EXISTS stepfast_dependency_open ON stepfast_dependency (child_id, parent_id) WHERE state = 'open';
-- only: mariadb
CREATE INDEX stepfast_dependency_open ON stepfast_dependency (state, child_id, parent_id);
