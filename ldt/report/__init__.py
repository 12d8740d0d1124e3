"""Reports on a run and its answers: one page of HTML, and runs side by side."""
