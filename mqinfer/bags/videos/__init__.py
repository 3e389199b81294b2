"""Videos: files, and topics of recordings whose messages are packets of one."""
