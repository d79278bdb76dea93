"""What to change in a repository: baseline, three-way comparison, and diffs for people."""
