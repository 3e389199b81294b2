"""Commands that show what goes on at a broker."""
