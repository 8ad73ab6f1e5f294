"""Whether a model learned a shortcut at one site."""
