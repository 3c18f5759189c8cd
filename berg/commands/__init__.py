"""One thin function per command, and what they print."""
