"""Keys, certificates and documents of those who take part."""
