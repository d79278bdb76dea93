"""What an agent may do: denied by default, granted in TOML or by a preset, enforced by the tools and the box.

`rules` matches patterns, `grants` defines the data of a file or preset, `capabilities` decides, and `compiling`
translates file and network rules into a box's mounts and proxy, so that a command cannot do what a tool may not.
"""
