"""Training of one model over the columns of several parties."""
