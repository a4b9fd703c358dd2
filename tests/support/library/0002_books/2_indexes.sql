CREATE INDEX {if_not_exists} library_book_shelf ON library_book (shelf_id);
