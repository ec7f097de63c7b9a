"""The truth matrix: what gpu-align says is what CUDA opens, in every combination that Slurm offers.

    axes     the axes as data, and which combinations make the matrix or its sample
    play     inside a cluster: launches combinations and collects what every task says
    judge    pure: what a combination's tasks must be, from Slurm's and the kernel's word alone
    run      starts the clusters, counts, prints

Nothing here calls gpu-align's own code: positions are resolved again, from the gres list as text.
"""
