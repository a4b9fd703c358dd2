"""What developing Stepfast needs and using it does not: servers for tests and benchmarks."""
