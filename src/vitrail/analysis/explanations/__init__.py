"""Shapley values of single predictions, and what sites show each other of them."""
