#!/bin/sh
# Quantum ESPRESSO: the ground state of hydrogen in a box, by many small steps.
set -eu
gzip -dc /usr/share/doc/quantum-espresso/examples/CPV/EXX-wf-example/H_HSCV_PBE-1.0.UPF.gz >H.UPF
cat >in.pw <<END
&control calculation='scf' prefix='h' outdir='./out' pseudo_dir='./' /
&system ibrav=1 celldm(1)=10.0 nat=1 ntyp=1 ecutwfc=$1 nbnd=4 occupations='smearing' degauss=0.02 /
&electrons conv_thr=1.0d-14 mixing_beta=0.1 electron_maxstep=$2 startingpot='atomic' /
ATOMIC_SPECIES
H 1.008 H.UPF
ATOMIC_POSITIONS
H 0.0 0.0 0.0
K_POINTS automatic
4 4 4 1 1 1
END
exec pw.x -in in.pw
