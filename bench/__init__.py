"""The benchmarks.

`make bench` runs kworker beside what people use instead. `make scale` tells what a record costs as
all around it grows, `make profile` where its time goes, and `make backpressure` which consumer a
memory limit kills. `bench.document` makes the pages of the figures of the first two.
"""
