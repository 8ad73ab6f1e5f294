"""What a run reveals. Data in, tables out, no drawing."""
