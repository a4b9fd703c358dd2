"""What an operator may see and do; the command line and the dashboard are thin over it."""
