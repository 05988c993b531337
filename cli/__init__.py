"""The command ``slotflow``: each command parses, calls the library, and prints."""
