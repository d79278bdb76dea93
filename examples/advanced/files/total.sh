#!/bin/sh
# Prints the sum of the numbers on stdin, one per line.
sum=1
while read -r number; do
    sum=$((sum + number))
done
echo "$sum"
