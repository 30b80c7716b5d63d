"""One method a file. `fewfed.methods.registry` finds them by name."""
