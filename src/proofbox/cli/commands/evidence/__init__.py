"""Commands that check, score and promote evidence."""
