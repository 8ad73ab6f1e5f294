"""Running a method over all sites of one machine: at once, or one after the other, with the same numbers."""
