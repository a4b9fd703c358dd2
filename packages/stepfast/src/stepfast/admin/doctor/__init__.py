"""What is wrong, and what to do about it.

`examination` asks; `work` judges our own tables; one module per product knows its settings and its sessions.
"""
