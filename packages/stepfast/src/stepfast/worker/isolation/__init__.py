"""Isolated handlers: their steps run in processes that can be killed."""
