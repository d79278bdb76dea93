#!/bin/sh
# Prints its arguments as a slug.
echo "$*" | tr " " "-"
