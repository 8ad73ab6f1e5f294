"""What a site holds: reading, checking against the study, encoding, splitting, cutting one table into sites."""
