"""`stepfast doctor`: what is wrong, and what to do about it.

`examination` runs all checks. `work` checks our own tables, `broker` the brokers, and one module per database product its
settings and sessions.
"""
