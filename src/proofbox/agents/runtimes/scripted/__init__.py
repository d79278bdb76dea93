"""The scripted agent: it follows a script and needs no model."""
