"""Reports of campaigns: computed from the evidence of their runs, judged by gates, and shown as text."""
