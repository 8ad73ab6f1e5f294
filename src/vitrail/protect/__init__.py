"""What stands between a report and the wire, whatever the method."""
