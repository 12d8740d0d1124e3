"""What a run and its answers look like: one page of HTML, and runs side by side."""
