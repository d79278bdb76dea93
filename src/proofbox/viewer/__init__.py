"""The local web viewer of evidence, and its export to one self-contained HTML file."""
