"""A site looks at its own rows and repairs its own file. Nothing leaves."""
