"""Whether values belong to their rows: what a site works out, and what the coordinator tests."""
