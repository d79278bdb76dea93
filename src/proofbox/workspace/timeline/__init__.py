"""History: snapshots, diffs, rollback, forks, overlays, effects."""
