"""A site's side of the rounds."""
