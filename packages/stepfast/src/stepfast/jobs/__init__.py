"""Jobs and their leased steps: stored, claimed, committed once, retried, rescued, archived."""
