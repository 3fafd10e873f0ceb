#!/bin/sh
# Three processes and two pipes: numbers, squares, running sums.
steps=$1
i=0
while [ "$i" -lt "$steps" ]; do i=$((i + 1)); echo "$i"; sleep 0.02; done |
    while read -r n; do echo $((n * n)); done |
    { sum=0; while read -r square; do sum=$((sum + square)); echo "step $sum"; done; }
