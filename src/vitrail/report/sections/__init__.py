"""The sections of the page of a run."""
