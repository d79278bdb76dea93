#!/bin/sh
# The agent never sees this file.
test "$(printf '2\n3\n' | sh total.sh)" = 5
