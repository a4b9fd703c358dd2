"""The process: claims steps, runs them, commits them, and proves that it lives."""
