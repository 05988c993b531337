"""Ready-made settings as YAML files, read by `slotflow.config`."""
