#!/bin/sh
# Three processes and two pipes: numbers, squares, running sums. Goes on slowly until it may hurry.
steps=$1
i=0
while [ "$i" -lt "$steps" ]; do i=$((i + 1)); echo "$i"; if [ "$i" -lt 60 ] || [ -e hurry ]; then sleep 0.02; else sleep 1; fi; done |
    while read -r n; do echo $((n * n)); done |
    { sum=0; while read -r square; do sum=$((sum + square)); echo "step $sum"; done; }
