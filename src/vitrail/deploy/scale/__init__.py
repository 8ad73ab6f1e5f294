"""A common scale of columns, by secure sums."""
