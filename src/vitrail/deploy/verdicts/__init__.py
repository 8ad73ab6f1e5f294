"""Whether joining is worth it, answered by each site for itself by cross-validation."""
