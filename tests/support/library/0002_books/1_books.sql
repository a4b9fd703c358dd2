-- The second version is a folder: its files are read in order.
CREATE TABLE IF NOT EXISTS library_book (
    id {sequence},
    shelf_id {key} NOT NULL,
    title {label} NOT NULL,
    bought_at BIGINT NOT NULL DEFAULT ({now})
) {table_options};

ALTER TABLE library_shelf ADD COLUMN books INTEGER NOT NULL DEFAULT 0;
