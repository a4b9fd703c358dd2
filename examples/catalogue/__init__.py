"""A shop's catalogue, synced into a table in spite of failures."""
