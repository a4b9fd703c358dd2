"""Paged syncs: plan, fetch, consolidate, complete, each made of leased steps."""
