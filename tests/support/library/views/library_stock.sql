-- What is on which shelf.
CREATE VIEW {view} AS SELECT shelf_id, title FROM library_book WHERE {mark};
