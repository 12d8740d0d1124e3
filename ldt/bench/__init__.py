"""Time and memory of attention and of encoders, beside what else there is."""
