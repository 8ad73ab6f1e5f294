"""What the [protect] section of a study comes to in one run."""
