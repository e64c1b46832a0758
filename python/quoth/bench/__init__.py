"""Measuring: what a step costs, what a machine can do, and whether one way is faster than another.

In: a model, or the machine. Out: medians with their spread, to the command line and to programs that import this.

B1  Plain decoding is always one of the runners, and ratios come from runs that alternate in one process.
B2  The answer is checked before the clock starts: equal rows, equal tokens.
B3  A figure carries its spread, 25th to 75th percentile; what is smaller than the spread is no difference.
"""
