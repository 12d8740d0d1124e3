"""Input and output: files, pipes, remote stores and tables, and atomic writing."""
