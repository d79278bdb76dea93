"""What an agent does to a workspace: one contract of nine tools, and who carries them out.

`contract` names the tools and their results; everything else is behind it.
"""
