"""flashmla's MLA decode beside other libraries: the same inputs, the same run, the same method.

`python -m flashmla.peers` (from an installed package) or `./dev peers` (from a checkout) runs it. How a figure
comes about is told in `docs/benchmarking.md`.
"""
