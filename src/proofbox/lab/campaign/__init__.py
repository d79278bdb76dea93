"""Campaigns: flows compared on the same missions, registered before the first attempt."""
