"""Three databases behind one set of statements: dialects, drivers, connections, transactions, migrations."""
