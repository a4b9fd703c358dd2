"""How messages reach the world: webhooks by HTTP, alerts by Apprise. Knows no job and writes no row."""
