"""Time and memory of an encoder beside RoBERTa, and what a machine has and grants."""
