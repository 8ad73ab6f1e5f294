"""Private set intersection: whom the parties have in common."""
