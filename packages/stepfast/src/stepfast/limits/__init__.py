"""How much may run at once, and how often: limits that hold across all workers and processes."""
