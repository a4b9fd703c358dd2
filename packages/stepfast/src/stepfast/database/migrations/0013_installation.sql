-- Which tables these are, wherever they are seen from: databases of two servers may have the same name. One row, for good.
CREATE TABLE IF NOT EXISTS stepfast_installation (
    id INTEGER NOT NULL PRIMARY KEY,
    name {key} NOT NULL,
    made_at BIGINT NOT NULL
) {table_options};

-- only: sqlite
INSERT INTO stepfast_installation (id, name, made_at) VALUES (1, lower(hex(randomblob(16))), {now}) {keep_existing};
-- only: postgresql
INSERT INTO stepfast_installation (id, name, made_at) VALUES (1, replace(CAST(gen_random_uuid() AS TEXT), '-', ''), {now}) {keep_existing};
-- only: mariadb
INSERT INTO stepfast_installation (id, name, made_at) VALUES (1, LOWER(HEX(RANDOM_BYTES(16))), {now}) {keep_existing};
