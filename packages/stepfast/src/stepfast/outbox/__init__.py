"""What leaves the database: staged in a transaction, sent after its commit, at least once and in order."""
