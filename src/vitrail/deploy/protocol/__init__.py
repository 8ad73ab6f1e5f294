"""What crosses between machines, and what both ends check of it."""
