"""What an operator may see. Reads the tables, never the views: those are for people at a SQL prompt."""
