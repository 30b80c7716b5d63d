"""fewfed beside other simulators: see README.md."""
