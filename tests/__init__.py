"""The tests, and in `tests.support` what several of them share."""
