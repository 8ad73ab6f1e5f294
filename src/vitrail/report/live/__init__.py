"""The page that follows a run while it is written."""
