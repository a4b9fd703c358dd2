"""A shop's catalogue, synced into a table while everything goes wrong."""
