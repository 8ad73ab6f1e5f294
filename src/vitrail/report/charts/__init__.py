"""Charts and tables: numbers in, SVG or HTML text out."""
