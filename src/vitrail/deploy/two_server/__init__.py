"""Two-server robust aggregation by message."""
