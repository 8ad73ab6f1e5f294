"""A draft of a study from the tables or images of the sites, to be read by a person."""
