"""The programs that are measured, each in a process of its own; the peers' run in environments of their own."""
