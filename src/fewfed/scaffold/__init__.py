"""The first files of a method: `fewfed new`."""
