-- only: postgresql, mariadb
CREATE OR REPLACE VIEW library_stock AS SELECT shelf_id, title FROM library_book;
-- only: sqlite
CREATE VIEW IF NOT EXISTS library_stock AS SELECT shelf_id, title FROM library_book;
