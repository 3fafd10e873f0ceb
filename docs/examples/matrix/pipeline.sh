#!/bin/sh
# Prints the running sum of the squares of 1 … $1, through two pipes.
i=0
while [ "$i" -lt "$1" ]; do i=$((i + 1)); echo "$i"; sleep 0.03; done |
    while read -r n; do echo $((n * n)); done |
    { sum=0; while read -r square; do sum=$((sum + square)); echo "sum $sum"; done; }
