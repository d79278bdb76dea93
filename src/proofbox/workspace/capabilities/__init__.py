"""What an agent may do: default deny, said in TOML or by a preset, checked by the tools and compiled into the box.

`rules` compare, `grants` is the data of a file or preset, `capabilities` decides, `compiling` turns what concerns files
and the network into a box's mounts and proxy, so that a command can't do what a tool may not.
"""
