"""Of pictures: what prototypes and marks tell."""
