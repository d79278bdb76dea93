"""The documents that verification understands: outcome, schedule, tree manifest, path witnesses."""
