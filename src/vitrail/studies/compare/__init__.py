"""Several methods on one study, cross-validated within each site."""
