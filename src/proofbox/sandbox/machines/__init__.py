"""Virtual machines: their kernel, their initramfs, and the programs that run them."""
