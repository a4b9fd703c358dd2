"""The ends of jobs: their results, and how to wait for them or watch until then."""
