#!/usr/bin/perl
# Perl: a hash of lists and a child that answers over a pipe. Goes on slowly until it may hurry.
use strict; use warnings; use IPC::Open2;
$| = 1;
my $steps = shift;
my $pid = open2(my $out, my $in, $^X, '-e', '$|=1; my $sum=0; while (<STDIN>) { $sum += $_; print "$sum\n"; }');
my %seen;
for my $step (0 .. $steps - 1) {
    print $in "$step\n";
    my $sum = <$out>;
    chomp $sum;
    push @{ $seen{ $sum % 7 } }, $step;
    print "step $step $sum ", join(',', map { scalar @{ $seen{$_} } } sort keys %seen), "\n";
    select(undef, undef, undef, $step < 60 || -e 'hurry' ? 0.01 : 0.5);
}
close $in;
waitpid $pid, 0;
print "end $?\n";
