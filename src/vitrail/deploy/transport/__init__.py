"""Bytes between processes and machines; they are looked into elsewhere."""
