"""The leased step: asked for, claimed, run, committed under its fence."""
