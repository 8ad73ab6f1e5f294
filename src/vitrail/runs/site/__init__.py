"""What a site does with its own model after a run."""
