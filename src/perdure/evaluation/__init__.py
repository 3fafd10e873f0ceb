"""Did it pay: a plan on paper, two arms, real faults, four measures that compare, and the mistakes an evaluation may make."""
