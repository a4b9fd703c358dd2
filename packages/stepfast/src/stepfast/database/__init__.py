"""The only place that knows there are three databases."""
