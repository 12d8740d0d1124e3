"""Bytes to records and back: files, pipes, stores and tables; and what is written, whole or not."""
