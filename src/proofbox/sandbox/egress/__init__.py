"""Network access for a box with an allowlist, through a proxy outside the box."""
