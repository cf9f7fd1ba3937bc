"""Training recipes as YAML files: `scm-fast train --config NAME` finds them by name."""
