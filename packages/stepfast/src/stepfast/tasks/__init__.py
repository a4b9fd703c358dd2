"""Tasks from queues of others: each becomes a job by its id, and whoever sent it is told of its end."""
