"""Tables and images as hospitals hold them, read into frames of text and arrays."""
