"""`python -m ldt.demo`: why whole documents are worth reading, on contracts made here."""
