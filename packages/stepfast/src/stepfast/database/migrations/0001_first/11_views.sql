-- The names that the views of each component have here: none, default (their own), or a prefix. See `stepfast migrate --views`.
CREATE TABLE IF NOT EXISTS stepfast_view_names (
    id {key} NOT NULL PRIMARY KEY,
    names {key} NOT NULL
) {table_options};
