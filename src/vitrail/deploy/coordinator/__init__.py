"""The coordinator's side of the rounds."""
