"""A site's model card: a page for people, Markdown with a header for registers, and what it answers of TRIPOD+AI."""
