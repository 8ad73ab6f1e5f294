"""What each site contributed to the model of one user."""
