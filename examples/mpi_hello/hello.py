"""The smallest program that needs a cluster: every process adds its rank to a sum that all of them get.

The first process prints who took part and the sum; the exit code tells whether the sum is right. Not covered: GPU
buffers, for which mpi4py needs an Open MPI built with CUDA.
"""

import sys

from mpi4py import MPI


def main():
    world = MPI.COMM_WORLD
    total = world.allreduce(world.rank)
    # a list on the first process, None on the others
    hosts = world.gather(MPI.Get_processor_name())
    if world.rank == 0:
        for rank, host in enumerate(hosts):
            print(f"process {rank} of {world.size} on {host}")
        print(f"the sum of the ranks on {len(set(hosts))} hosts is {total}")
    sys.exit(total != world.size * (world.size - 1) // 2)


if __name__ == "__main__":
    main()
