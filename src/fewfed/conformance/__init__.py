"""What every method promises, whatever it does inside, as functions that anybody can call: `fewfed check METHOD`."""
