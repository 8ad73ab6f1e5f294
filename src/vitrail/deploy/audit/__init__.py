"""The record of what left a site, and its verification."""
