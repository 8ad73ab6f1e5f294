"""What may have happened to the data of one site in one column."""
