"""The model that a run ended with, in hand: loaded, asked about new rows, taken elsewhere."""
