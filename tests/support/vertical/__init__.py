"""Hosts and guests with invented people."""
