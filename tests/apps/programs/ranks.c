/* MPI: a ring of messages and a reduction in every step; rank 0 prints. Goes on slowly until it may hurry. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long steps = argc > 1 ? atol(argv[1]) : 100;
    double *values = malloc(100000 * sizeof *values), token = rank;
    for (int i = 0; i < 100000; i++) values[i] = rank + i * 1e-3;
    for (long step = 0; step < steps; step++) {
        double from, sum, mine = 0;
        MPI_Sendrecv(&token, 1, MPI_DOUBLE, (rank + 1) % size, 0, &from, 1, MPI_DOUBLE, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        token = from + 1;
        for (int i = 0; i < 100000; i++) { values[i] = values[i] * 0.999 + token * 1e-3; mine += values[i]; }
        MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0) { printf("step %ld %a\n", step, sum); fflush(stdout); }
        usleep(step < 60 || access("hurry", F_OK) == 0 ? 10000 : 500000);
    }
    if (rank == 0) printf("end\n");
    MPI_Finalize();
    return 0;
}
