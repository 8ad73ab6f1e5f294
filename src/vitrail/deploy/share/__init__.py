"""The share of each site in a round, told to it before it takes part."""
