-- A made-up component: books on shelves, in two versions. (Its first version alone: ../library_before.)
CREATE TABLE IF NOT EXISTS library_shelf (
    id {key} NOT NULL PRIMARY KEY,
    room {label} NOT NULL
) {table_options};

CREATE INDEX {if_not_exists} library_shelf_room ON library_shelf (room);
