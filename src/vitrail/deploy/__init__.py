"""The same rounds between real machines. FLARE carries the messages; what they hold is decided here."""
