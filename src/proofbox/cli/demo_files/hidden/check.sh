# Hidden from the agents: prints how many of three cases are right.
right=0
check() { [ "$(sh slug.sh "$1")" = "$2" ] && right=$((right + 1)); }
check "Hello, World!" hello-world
check "  two   spaces  " two-spaces
check "C'est la 3e" c-est-la-3e
echo "$right of 3"
