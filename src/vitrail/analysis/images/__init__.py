"""What a site's model looks at in its own images."""
