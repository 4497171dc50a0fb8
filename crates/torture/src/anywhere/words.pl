# Regular expressions, hashes, sorting, sprintf, pack, closures, local, die; prints checksums.
use strict;
use warnings;
$| = 1;
my $rounds = shift;
my $sum = sub { my $h = 7; $h = ($h * 33 + $_) % 4294967291 for unpack "C*", $_[0]; $h };
for my $r (1 .. $rounds) {
    my $x = $r;
    my @words = map { $x = ($x * 1103515245 + 12345) % 2147483648; sprintf "%s%x", chr(97 + $x % 26), $x } 1 .. 8000;
    my %seen;
    $seen{ substr $_, 0, 2 }++ for @words;
    print "hash ", join(",", map { "$_=$seen{$_}" } (sort { $seen{$b} <=> $seen{$a} || $a cmp $b } keys %seen)[0 .. 9]), "\n";
    my $text = join " ", @words;
    my @found = $text =~ /\b([a-m](?=\d)\w*?([0-9a-f])\2\w*)\b/g;
    print "regex ", scalar(@found), " ", $sum->(join "|", @found), "\n";
    (my $copy = $text) =~ s/(\d+)/$1 + 1/ge;
    $copy =~ tr/a-f/A-F/;
    print "subst ", $sum->($copy), "\n";
    print "sort ", $sum->(join ",", sort { lc $a cmp lc $b } @words), "\n";
    my @numbers = sort { $a <=> $b } map { $_ * 7919 % 10007 / 3 } 1 .. 20000;
    printf "numbers %.6f %.6f %d\n", $numbers[77], $numbers[-5], scalar @numbers;
    print "pack ", unpack("H*", pack("NvC/a*w", 4000 + $r, 7, "abc", 300)), "\n";
    my $deep = sub { my ($f, $n) = @_; $n < 2 ? $n : $f->($f, $n - 1) + $f->($f, $n - 2) };
    print "deep ", $deep->($deep, 17), "\n";
    my $died = eval { local $SIG{__DIE__} = sub { }; die { code => $r } } || $@->{code};
    print "died $died\n";
    printf "float %.10e %s %s\n", exp(sin($r) * 3) ** 0.37, 1e15 / 3, 10 % 3;
}
