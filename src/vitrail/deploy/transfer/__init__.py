"""Whom to learn from, found out between machines before the first round (the adapted Ndoye factor)."""
