"""Pages made in little time, and a browser to look at them."""
