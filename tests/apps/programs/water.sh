#!/bin/sh
# GROMACS: a box of water, prepared once, then run on one thread so that two runs are the same bit for bit.
set -eu
steps=$1
if [ ! -f run.tpr ]; then
    printf '#include "oplsaa.ff/forcefield.itp"\n#include "oplsaa.ff/spc.itp"\n[ system ]\nwater\n[ molecules ]\n' >topol.top
    gmx -quiet solvate -cs spc216.gro -box 1.9 1.9 1.9 -o box.gro -p topol.top >prepare.log 2>&1
    printf 'integrator = md\nnsteps = %s\nnstlog = 10\nnstenergy = 10\nnstxout = 50\nnstvout = 50\ncoulombtype = PME\nrcoulomb = 0.9\nrvdw = 0.9\nrlist = 0.9\ntcoupl = v-rescale\ntc-grps = System\ntau-t = 0.1\nref-t = 300\ngen-vel = yes\ngen-seed = 7\nld-seed = 7\nconstraints = h-bonds\n' "$steps" >run.mdp
    gmx -quiet grompp -f run.mdp -c box.gro -p topol.top -o run.tpr -maxwarn 2 >>prepare.log 2>&1
fi
exec gmx -quiet mdrun -s run.tpr -deffnm run -ntmpi 1 -ntomp 1 -reprod -nb cpu -cpt -1
