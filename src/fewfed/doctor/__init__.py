"""What this machine can do, and what to install for more: `fewfed doctor`."""
