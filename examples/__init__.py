"""Programs to read and to run. Each works on SQLite and needs no server."""
