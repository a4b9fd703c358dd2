"""Schedules: when a job is due, and how a tick becomes exactly one job."""
