"""Queues of others: what carries messages to our workers and between them."""
