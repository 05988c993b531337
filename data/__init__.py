"""Files that ship with slotflow: the default model, an example input, verification binaries."""
